"""Follow a log that another process writes."""

import os
from collections.abc import Callable
from pathlib import Path

from zlaunch.launch.monitoring.line_text import plain, visible

LONGEST_LINE_BYTES = 64 * 1024
"""A longer line is passed on in pieces."""

MOST_BYTES = 8 << 20
"""How much is read at once; a rank may write faster than a terminal shows."""


class LogTail:
    """Passes on a rank's output: byte for byte, or, with a prefix or as plain text, in whole lines."""

    def __init__(
        self, file: Path, show: Callable[[bytes], None], prefix: str = "", *, is_plain: bool = False
    ) -> None:
        """Begin at the start of the file, which need not exist yet.

        `is_plain` leaves out progress bars and control characters; colours stay if FORCE_COLOR is set.
        """
        self._file = file
        self._show = show
        self._offset = 0
        self._prefix = prefix.encode()
        self._rest = b""
        self._is_plain = is_plain
        self._keeps_colours = bool(os.environ.get("FORCE_COLOR"))

    def pump(self) -> bool:
        """Pass on what was added since the last call, up to a limit; return whether there was anything."""
        try:
            with self._file.open("rb") as log:
                log.seek(self._offset)
                chunk = log.read(MOST_BYTES)
        except OSError:
            return False
        self._offset += len(chunk)
        output = chunk
        if self._prefix or self._is_plain:
            output = self._whole_lines(chunk)
        if output:
            self._show(output)
        return bool(chunk)

    def _whole_lines(self, chunk: bytes) -> bytes:
        *lines, rest = (self._rest + chunk).split(b"\n")
        # Of a progress bar only the last state counts; a \r at the end may become \r\n.
        self._rest = rest[max(0, rest.rfind(b"\r", 0, -1)) :]
        if len(self._rest) > LONGEST_LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        texts = map(self._text, lines)
        return b"".join(self._prefix + text + b"\n" for text in texts if text is not None)

    def _text(self, line: bytes) -> bytes | None:
        """Return what to show of a line; None for a progress bar in plain text."""
        if self._is_plain:
            return plain(line, keeps_colours=self._keeps_colours)
        return visible(line)

    def finish(self) -> None:
        """Pass on the rest."""
        while self.pump():
            pass
        if self._rest and (text := self._text(self._rest)) is not None:
            if self._prefix:
                text += b"\n"
            self._show(self._prefix + text)
        self._rest = b""
