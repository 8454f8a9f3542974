"""The text of a line of output: without what a terminal would have overwritten, colours and progress bars."""

import re
from typing import Final

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
