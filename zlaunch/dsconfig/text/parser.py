"""Parse JSON as people write it, keeping the position of every value.

The grammar is that of hjson, which DeepSpeed uses. Where hjson reads a string but something
else was meant (`True`, `.5`, `auto, "next": 1`), the value is the intended one, and the difference is a
finding.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from zlaunch.dsconfig.text.document import BYTE_ORDER_MARK, Document, Edit, KeyPath, Span, place_at
from zlaunch.dsconfig.text.remarks import ParseRemarks
from zlaunch.dsconfig.text.template import find_template
from zlaunch.dsconfig.text.tokens import TOKEN, Token, is_strict, unescape
from zlaunch.errors import Finding, Refused
from zlaunch.units import narrowed

MAX_DEPTH = 50
MAX_DIGITS = 400

_JSON_NUMBER = r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?"
_MEMBER = r"""(?:"[^"\n]*"|'[^'\n]*'|\w+)[ \t\r\f\v]*:"""
_VALUE_END = rf"[ \t\r]*(?:\n|\Z|[,}}\]#]|//|/\*|{_MEMBER})"
_UNDERSCORES = r"[+-]?\d[\d_]*\d"
_BARE_VALUE = r"[^,}\]\n]*"
_WORDS: Mapping[str, object] = {"true": True, "false": False, "null": None}
_PYTHON_WORDS: Mapping[str, object] = {"True": True, "False": False, "None": None}
_TEXT_TO_DEEPSPEED = "DeepSpeed reads it and the rest of the line as text"
_NO_OBJECT = ("a ds_config must be one JSON object", "begin the file with `{`")
_NO_NUMBERS = frozenset({"NaN", "Infinity", "-Infinity"})


def parse(text: str, file: str) -> Document:
    """Parse the text of a ds_config; raise Refused with the place of a syntax error, or for a template."""
    parser = _Parser(text, file)
    try:
        value = parser.document()
    except Refused:
        _refuse_template(text, file)
        raise
    notes = parser.notes
    if notes.findings:  # strict JSON has no placeholders without quotes
        _refuse_template(text, file)
    edits = tuple(notes.edits), tuple(notes.comments)
    return Document(file, text, value, parser.spans, tuple(notes.findings), *edits)


def _refuse_template(text: str, file: str) -> None:
    if (template := find_template(text, file)) is not None:
        raise Refused([template])


_PLAIN_STRING = r'"[^"\\\x00-\x1f]*"'
_PLAIN_MEMBER = r"""(?x)
    "(?P<key>[^"\\\x00-\x1f]*)"[ \t\r\n]*:[ \t\r\n]*
    (?P<value>(?P<int>-?(?:0|[1-9]\d{0,17}))|(?P<float>-?(?:0|[1-9]\d{0,17})\.\d{1,18}(?:[eE][+-]?\d\d?)?)|"(?P<text>[^"\\\x00-\x1f]*)"|(?P<word>true|false|null))
    (?:[ \t\r\n]*,[ \t\r\n]*(?=")|(?=[ \t\r\n]*\}))
    """
"""A member of an object in strict JSON, and the comma after it, unless it is the last one."""


@dataclass
class _Parser:
    """One pass over a text: the value, spans, remarks, and the edits to strict JSON."""

    text: str
    file: str
    spans: dict[KeyPath, Span] = field(default_factory=dict)

    notes: ParseRemarks = field(init=False)
    _token: Token = field(init=False)
    _end: int = 0
    """Where the last token ended."""

    def __post_init__(self) -> None:
        """Read the first token; a byte order mark goes before it."""
        self.notes = ParseRemarks(self.file, self.text)
        if self.text.startswith(BYTE_ORDER_MARK):
            self.notes.edits.append(Edit(0, 1, ""))
            self.notes.remark("byte-order-mark", "a byte order mark is", 0)
        self._advance(0)

    def document(self) -> dict[str, Any]:
        """Read the one object of a ds_config; raise Refused with the place of a syntax error."""
        start = self._token.start
        if self._token.text == "{":
            value = self._value(())
            assert isinstance(value, dict), "an object begins with a brace"
        elif self._token.kind in ("word", "string"):
            self.notes.remark("no-braces", "an object without braces is", start)
            end, closing = len(self.text), "}\n"
            if not self.text.endswith("\n"):  # a comment in the last line ends with it
                closing = "\n}\n"
            self.notes.edits += [Edit(start, start, "{\n"), Edit(end, end, closing)]
            value = self._object((), closing="")
        else:
            self._fail(*_NO_OBJECT)
        self.spans[()] = Span(start, start, self._end)
        if self._token.kind != "end":
            self._fail(f"unexpected {self._token.quoted} after the end of the object")
        return value

    def _advance(self, position: int) -> None:
        """Read the next token, skipping comments and whitespace."""
        self._end = position
        token = re.compile(TOKEN)
        while position < len(self.text):
            match = token.match(self.text, position)
            assert match is not None, "the last arm matches anything"
            kind, position = str(match.lastgroup), match.end()
            if kind == "comment":
                self.notes.comment(match.start(), position)
            elif kind == "space":
                if match.group().strip(" \t\r\n"):
                    self.notes.space(match)
            else:
                self._token = Token(kind, match.group(), match.start())
                return
        self._token = Token("end", "", len(self.text))

    def _next(self) -> None:
        self._advance(self._token.end)

    def _value(self, path: KeyPath) -> object:
        token = self._token
        if len(path) > MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} levels deep")
        if token.text in ("{", "["):
            self._next()
            value: object
            if token.text == "{":
                value = self._object(path, closing="}")
            else:
                value = self._array(path)
            self._next()
            return value
        if token.kind in ("mark", "end"):
            self._fail(f"missing value before {token.quoted}")
        if token.text in ("'", '"'):
            self._fail(f"unterminated string: the closing `{token.text}` is missing")
        is_plain = token.kind == "number" or token.text in _WORDS
        if is_plain and (self._ends_value(token.end) or isinstance(path[-1], int)):
            self._next()
            if token.text in _WORDS:
                return _WORDS[token.text]
            return self._number(token)
        if token.kind in ("string", "lines"):
            self._next()
            return self._string(token)
        return self._bare_value(token)

    def _ends_value(self, position: int) -> bool:
        """Whether a number or a word ends here; otherwise hjson reads to the end of the line.

        If the rest of the line is another member, a comma is missing.
        """
        return re.compile(_VALUE_END).match(self.text, position) is not None

    def _object(self, path: KeyPath, closing: str) -> dict[str, object]:
        """Read members up to the closing brace or the end of the text, which the caller consumes."""
        members: dict[str, object] = {}
        while self._token.text != closing:
            self._plain_members(path, members)
            if self._token.text == closing:
                break
            key_token = self._token
            if key_token.kind not in ("string", "word"):
                self._fail(f"expected a key, not {key_token.quoted}")
            key = self._string(key_token)
            here = (*path, key)
            self._next()
            if self._token.kind == "end" and not closing and not members:  # a value, such as null
                self._fail(*_NO_OBJECT, key_token.start)
            self._expect(":", f"missing `:` after the key `{key}`")
            start = self._token.start
            if key in members:
                self.notes.duplicate(here, key_token, self.spans[here].key)
                kept, self.spans = self.spans, {}
                self._value(here)
                self.spans = kept
            else:
                members[key] = self._value(here)
                self.spans[here] = Span(key_token.start, start, self._end, key_token.end)
            self._separator(closing)
        return members

    def _plain_members(self, path: KeyPath, members: dict[str, object]) -> None:
        """Read members as far as they are plain JSON: nearly all of a file, in a fraction of the time."""
        position, text, spans = self._token.start, self.text, self.spans
        plain = re.compile(_PLAIN_MEMBER)
        while (match := plain.match(text, position)) is not None:
            key, whole, fraction, string, word = match.group("key", "int", "float", "text", "word")
            if key in members:
                break
            if whole is not None:
                members[key] = int(whole)
            elif fraction is not None:
                members[key] = narrowed(float(fraction))
            elif string is not None:
                members[key] = string
            else:
                members[key] = _WORDS[word]
            start, end = match.span("value")
            here = (*path, key)
            spans[here] = Span(position, start, end, match.end("key") + 1)
            position = match.end()
        if position != self._token.start:
            self._advance(position)

    def _array(self, path: KeyPath) -> list[object]:
        items: list[object] = []
        while self._token.text != "]":
            start = self._token.start
            item_path = (*path, len(items))
            items.append(self._value(item_path))
            self.spans[item_path] = Span(start, start, self._end)
            self._separator("]")
        return items

    def _separator(self, closing: str) -> None:
        if self._token.text == closing:
            return
        missing = f"a `,` or `{closing}` is missing before {self._token.quoted}"
        if (
            self._token.kind in ("word", "string", "number")
            and "\n" in self.text[self._end : self._token.start]
        ):
            self.notes.remark("missing-comma", "a line end instead of a comma is", self._end)
            self.notes.edits.append(Edit(self._end, self._end, ","))
            return
        comma = self._token
        self._expect(",", missing)
        if self._token.text == closing:
            self.notes.remark("trailing-comma", "a trailing comma is", comma.start)
            self.notes.edits.append(Edit(comma.start, comma.end, ""))

    def _expect(self, mark: str, message: str) -> None:
        if self._token.text != mark:
            self._fail(message)
        self._next()

    def _string(self, token: Token) -> str:
        if token.kind == "word":
            self.notes.lenient("bare-key", "a key without quotes is", token, token.text)
            return token.text
        if token.kind == "lines":
            lines = token.text[3:-3].strip("\n").split("\n")
            text = "\n".join(line.strip() for line in lines)
            self.notes.lenient("single-quotes", "a string in triple quotes is", token, text)
            return text
        if re.fullmatch(_PLAIN_STRING, token.text) is not None:
            return token.text[1:-1]
        text = unescape(token.text[1:-1])
        if token.text[0] == "'":
            self.notes.lenient("single-quotes", "a string in single quotes is", token, text)
        elif not is_strict(token.text):
            self.notes.lenient("loose-text", "a tab or an invalid escape in a string is", token, text)
        return text

    def _number(self, token: Token) -> int | float:
        if len(token.text) > MAX_DIGITS or math.isinf(value := float(token.text)):
            self._fail("this number is too large", offset=token.start)
        number = narrowed(value)
        if re.fullmatch(r"[+-]?\d+", token.text):
            number = int(token.text)
        if not re.fullmatch(_JSON_NUMBER, token.text):
            self.notes.misread(token, number, f"is not a JSON number: {_TEXT_TO_DEEPSPEED}")
        return number

    def _bare_value(self, token: Token) -> object:
        """Read text without quotes: hjson takes the whole line, the writer meant it up to the next mark."""
        end = self.text.find("\n", token.start)
        line = self.text[token.start : end if end >= 0 else None].rstrip()
        bare = str(re.match(_BARE_VALUE, line).group()).rstrip()  # type: ignore[union-attr]
        meant = Token("word", bare, token.start)
        self._advance(meant.end)
        if re.fullmatch(_UNDERSCORES, bare) and len(bare) <= MAX_DIGITS:
            return self._python(meant, int(bare))
        if bare in _PYTHON_WORDS:
            return self._python(meant, _PYTHON_WORDS[bare])
        if bare in _NO_NUMBERS:
            self.notes.no_number(meant)
            return bare
        if bare != line:
            self.notes.misread(
                meant, bare, f"has no quotes, so DeepSpeed reads the rest of the line as its value: `{line}`"
            )
        else:
            self.notes.lenient("no-quotes", "a string without quotes is", meant, bare)
        return bare

    def _python(self, token: Token, value: object) -> object:
        self.notes.misread(token, value, f"is Python, not JSON: {_TEXT_TO_DEEPSPEED}")
        return value

    def _fail(self, message: str, hint: str | None = None, offset: int | None = None) -> NoReturn:
        if offset is None:
            offset = self._token.start
        place = place_at(self.file, self.text, offset)
        raise Refused([Finding("not-json", message, hint, place=place)])
