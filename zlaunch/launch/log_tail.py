"""Passing on what is new in a log that another process writes."""

from pathlib import Path

from zlaunch import console

LONGEST_LINE_BYTES = 64 * 1024
"""A line that is longer is passed on in pieces."""


class LogTail:
    """Shows a rank's output: byte for byte, or whole lines with a prefix where several are shown."""

    def __init__(self, file: Path, prefix: str = "") -> None:
        """Begin at the start of the file, which need not exist yet."""
        self._file = file
        self._offset = 0
        self._prefix = prefix.encode()
        self._rest = b""
        self.is_within_a_line = False
        """Whether the last byte that was shown ended no line."""

    def pump(self) -> None:
        """Show what was added since the last call."""
        try:
            with self._file.open("rb") as log:
                log.seek(self._offset)
                chunk = log.read()
        except OSError:
            return
        self._offset += len(chunk)
        self._show(self._whole_lines(chunk) if self._prefix else chunk)

    def _whole_lines(self, chunk: bytes) -> bytes:
        *lines, rest = (self._rest + chunk).split(b"\n")
        # Of a bar that is drawn again and again only the last one counts; a \r at the end may become \r\n.
        self._rest = rest[rest.rfind(b"\r", 0, -1) + 1 :]
        if len(self._rest) > LONGEST_LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        return b"".join(self._prefix + _as_left(line) + b"\n" for line in lines)

    def finish(self) -> None:
        """Show the rest."""
        self.pump()
        if self._rest:
            self._show(self._prefix + _as_left(self._rest) + b"\n")
            self._rest = b""

    def _show(self, chunk: bytes) -> None:
        if chunk:
            console.job_output(chunk)
            self.is_within_a_line = not chunk.endswith(b"\n")


def _as_left(line: bytes) -> bytes:
    """Take what a terminal would show of a line in the end."""
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1]
