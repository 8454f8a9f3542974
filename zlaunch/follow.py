"""Passing on what is new in a log that another process writes."""

from pathlib import Path

from zlaunch import console


class Follower:
    """Shows a rank's output: byte for byte, or whole lines with a prefix where several are shown."""

    def __init__(self, file: Path, prefix: str = "") -> None:
        """Begin at the start of the file, which need not exist yet."""
        self._file = file
        self._offset = 0
        self._prefix = prefix.encode()
        self._rest = b""

    def pump(self) -> None:
        """Show what was added since the last call."""
        try:
            with self._file.open("rb") as log:
                log.seek(self._offset)
                chunk = log.read()
        except FileNotFoundError:
            return
        self._offset += len(chunk)
        if self._prefix:
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            chunk = b"".join(self._prefix + line.rsplit(b"\r", 1)[-1] + b"\n" for line in lines)
        if chunk:
            console.job_output(chunk)

    def finish(self) -> None:
        """Show the rest."""
        self.pump()
        if self._rest:
            console.job_output(self._prefix + self._rest + b"\n")
            self._rest = b""
