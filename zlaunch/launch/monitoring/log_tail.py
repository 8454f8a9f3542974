"""Follow a log that another process writes."""

from collections.abc import Callable
from pathlib import Path

LONGEST_LINE_BYTES = 64 * 1024
"""A longer line is passed on in pieces."""

MOST_BYTES = 8 << 20
"""How much is read at once; a rank may write faster than a terminal shows."""


class LogTail:
    """Passes on a rank's output: byte for byte, or, with a prefix, in whole lines."""

    def __init__(self, file: Path, show: Callable[[bytes], None], prefix: str = "") -> None:
        """Begin at the start of the file, which need not exist yet."""
        self._file = file
        self._show = show
        self._offset = 0
        self._prefix = prefix.encode()
        self._rest = b""

    def pump(self) -> bool:
        """Pass on what was added since the last call, up to a limit; return whether there was anything."""
        try:
            with self._file.open("rb") as log:
                log.seek(self._offset)
                chunk = log.read(MOST_BYTES)
        except OSError:
            return False
        self._offset += len(chunk)
        if shown := self._whole_lines(chunk) if self._prefix else chunk:
            self._show(shown)
        return bool(chunk)

    def _whole_lines(self, chunk: bytes) -> bytes:
        *lines, rest = (self._rest + chunk).split(b"\n")
        # Of a progress bar only the last state counts; a \r at the end may become \r\n.
        self._rest = rest[rest.rfind(b"\r", 0, -1) + 1 :]
        if len(self._rest) > LONGEST_LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        return b"".join(self._prefix + _visible(line) + b"\n" for line in lines)

    def finish(self) -> None:
        """Pass on the rest."""
        while self.pump():
            pass
        if self._rest:
            self._show(self._prefix + _visible(self._rest) + b"\n")
            self._rest = b""


def _visible(line: bytes) -> bytes:
    """Keep what a terminal would still show of a line."""
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1]
