"""The tokens of hjson."""

import json
import re
from collections.abc import Mapping
from typing import NamedTuple

TOKEN = r"""(?sx)
        (?P<space>[\s\ufeff]+)
      | (?P<comment>//[^\r\n]*|\#[^\r\n]*|/\*.*?\*/)
      | (?P<lines>'''.*?''')
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<word>[A-Za-z_$][\w$.-]*)
      | (?P<mark>[{}\[\]:,])
      | (?P<other>.)
    """  # noqa: S105 - a pattern


class Token(NamedTuple):
    """A piece of text and where it starts."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        """The offset of its end."""
        return self.start + len(self.text)

    @property
    def quoted(self) -> str:
        """Write it for a message."""
        if self.kind == "end":
            return "the end of the file"
        return f"`{self.text}`"


_ESCAPE = r"(?s)\\(u[0-9a-fA-F]{4}|.)"
_ESCAPED: Mapping[str, str] = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


_HALF = "[\ud800-\udfff]"
"""Half of a pair of surrogates, which is not text without the other."""


def unescape(text: str) -> str:
    """Read the inside of a string as JSON does, invalid escapes as JavaScript does.

    The escape of half a pair of surrogates stays as it is written.
    """

    def plain(match: re.Match[str]) -> str:
        code = match.group(1)
        if len(code) == 5:
            return chr(int(code[1:], 16))
        return _ESCAPED.get(code, code)

    try:
        read = str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        read = re.sub(_ESCAPE, plain, text)
    return re.sub(_HALF, lambda half: f"\\u{ord(half[0]):04x}", read)


def is_strict(written: str) -> bool:
    """Whether strict JSON accepts a quoted string."""
    try:
        json.loads(written)
    except ValueError:
        return False
    return True
