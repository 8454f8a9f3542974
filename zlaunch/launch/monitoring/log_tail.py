"""Follow a log that another process writes, as a terminal would show it."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

LONGEST_LINE_BYTES = 64 * 1024
"""A longer line is passed on in pieces."""

MOST_BYTES = 8 << 20
"""How much is read at once; a rank may write faster than a terminal shows."""

_BAR: Final = re.compile(
    rb"\d%\|[^|\n]*\| *[^\s/]{1,20}/\S{1,20} \[[^\]\n]{1,300}\]"  # of a known length, with cells between ||
    rb"|\d[^\s\d]{0,20} \[\d\d:[\d:]{2,20}, [^\]\n]{1,300}\]"
)
"""What ends the state of a progress bar of tqdm; its description comes before."""
_ESCAPES: Final = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, movements of the cursor
    rb"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    rb"|\x1b[ -/]*[0-~]"
)
_COLOURS: Final = re.compile(rb"\x1b\[[\d;]*m")
_CONTROLS: Final = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")


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


def visible(line: bytes) -> bytes:
    """Keep what a terminal would still show of a line."""
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1]


def plain(line: bytes, *, keeps_colours: bool = False) -> bytes | None:
    """Keep the text of a line, without its end; None if it is only a progress bar."""
    text = visible(line)
    if keeps_colours and not _CONTROLS.search(_COLOURS.sub(b"", text)):
        return _beside_bar(line, text)
    return _beside_bar(line, _CONTROLS.sub(b"", _ESCAPES.sub(b"", text)))


def _beside_bar(line: bytes, text: bytes) -> bytes | None:
    """Return what was written behind a progress bar, which is drawn from the start of a line."""
    if b"\r" not in line.rstrip(b"\r"):
        return text
    bars = list(_BAR.finditer(text))
    if not bars:
        return text
    return text[bars[-1].end() :].strip() or None
