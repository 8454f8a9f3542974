"""JSON text as people write it → values that know where they stand.

DeepSpeed reads ds_config files with hjson, transformers and accelerate with strict JSON: the same
file can work in one and fail in the other. This reader accepts comments, trailing commas and
single quotes, makes `2e8` an integer as DeepSpeed's reader does, keeps the first of duplicate
keys, and reports every such thing as a finding with its place.
"""

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from zlaunch.errors import Finding, InputMissing, Place, Refused, Severity

KeyPath = tuple[str | int, ...]

_TOKEN = re.compile(
    r"""(?P<space>[\s\ufeff]+)
      | (?P<comment>//[^\n]*|\#[^\n]*|/\*.*?\*/)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<word>[A-Za-z_$][\w$-]*)
      | (?P<mark>[{}\[\]:,])
    """,
    re.VERBOSE | re.DOTALL,
)
MAX_DEPTH = 50
MAX_DIGITS = 400
_WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets into the text: where a key starts, and where its value starts and ends."""

    key: int
    start: int
    end: int


@dataclass(frozen=True)
class Document:
    """A parsed ds_config: its plain value, and the place of everything in it."""

    file: str
    text: str
    value: dict[str, Any]
    spans: Mapping[KeyPath, Span]
    remarks: tuple[Finding, ...] = ()

    def place(self, path: KeyPath) -> Place:
        """Say where a key stands, or the innermost object around it when it is absent."""
        while path not in self.spans:
            path = path[:-1]
        return _place(self.file, self.text, self.spans[path].key)


def read(file: Path) -> Document:
    """Read a ds_config file; raise InputMissing if there is none, Refused if it is no JSON."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise Refused(
            [Finding("not-text", "this is not UTF-8 text", place=Place(str(file), line, 1))]
        ) from None
    except OSError as error:
        raise InputMissing(f"cannot read the ds_config `{file}`: {error.strerror}") from None
    return parse(text, str(file))


def parse(text: str, file: str) -> Document:
    """Parse the text of a ds_config; raise Refused with the place if it is no JSON."""
    parser = _Parser(text, file)
    value = parser.document()
    return Document(file, text, value, parser.spans, tuple(parser.remarks))


def dotted(path: KeyPath) -> str:
    """Write a key path as users do: `zero_optimization.offload_param.device`."""
    return ".".join(str(part) for part in path)


def _place(file: str, text: str, offset: int) -> Place:
    before = text[:offset]
    return Place(file, before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int


@dataclass
class _Parser:
    text: str
    file: str
    spans: dict[KeyPath, Span] = field(default_factory=dict)
    remarks: list[Finding] = field(default_factory=list)

    _token: "_Token" = field(init=False)
    _end: int = 0
    """Where the last token ended."""

    def __post_init__(self) -> None:
        self._tokens = self._scan()
        self._token = next(self._tokens)

    def document(self) -> dict[str, Any]:
        start = self._token.start
        if self._token.text != "{":
            self._fail("a ds_config is one JSON object", "begin the file with `{`")
        value: dict[str, Any] = self._value(())
        self.spans[()] = Span(start, start, self._end)
        if self._token.kind != "end":
            self._fail(f"there is more after the end of the object: `{self._token.text}`")
        return value

    def _scan(self) -> Iterator[_Token]:
        position = 0
        while position < len(self.text):
            match = _TOKEN.match(self.text, position)
            if match is None:
                self._fail(f"unexpected `{self.text[position]}`", offset=position)
            kind = str(match.lastgroup)
            if kind == "comment":
                self._remark("comment", "comments", position)
            elif kind != "space":
                yield _Token(kind, match.group(), position)
            position = match.end()
        yield _Token("end", "the end of the file", len(self.text))

    def _next(self) -> None:
        self._end = self._token.start + len(self._token.text)
        self._token = next(self._tokens)

    def _value(self, path: KeyPath) -> Any:
        token = self._token
        if len(path) > MAX_DEPTH:
            self._fail(f"this is nested more than {MAX_DEPTH} deep")
        if token.text in ("{", "["):
            self._next()
            return self._object(path) if token.text == "{" else self._array(path)
        if token.kind in ("mark", "end"):
            self._fail(f"a value is missing before {_quoted(token)}")
        self._next()
        match token.kind:
            case "number":
                return self._number(token)
            case "string":
                return self._string(token)
        if token.text not in _WORDS:
            plain = token.text.lower()
            self._fail(
                f"`{token.text}` is no JSON value",
                f"write {plain}" if plain in _WORDS else f'write `"{token.text}"`',
                token.start,
            )
        return _WORDS[token.text]

    def _object(self, path: KeyPath) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while self._token.text != "}":
            key_token = self._token
            if key_token.kind not in ("string", "word"):
                self._fail(f"a key is expected here, not {_quoted(key_token)}")
            key = self._string(key_token)
            here = (*path, key)
            self._next()
            self._expect(":", f"a `:` is missing after the key `{key}`")
            start = self._token.start
            if key in members:
                self._duplicate(here, key_token.start)
                self._value((*here, -1))
            else:
                members[key] = self._value(here)
                self.spans[here] = Span(key_token.start, start, self._end)
            self._separator("}")
        self._next()
        return members

    def _array(self, path: KeyPath) -> list[Any]:
        items: list[Any] = []
        while self._token.text != "]":
            start = self._token.start
            item_path = (*path, len(items))
            items.append(self._value(item_path))
            self.spans[item_path] = Span(start, start, self._end)
            self._separator("]")
        self._next()
        return items

    def _separator(self, closing: str) -> None:
        if self._token.text == closing:
            return
        comma = self._token.start
        self._expect(",", f"a `,` or `{closing}` is missing before {_quoted(self._token)}")
        if self._token.text == closing:
            self._remark("trailing-comma", "trailing commas", comma)

    def _expect(self, mark: str, message: str) -> None:
        if self._token.text != mark:
            self._fail(message)
        self._next()

    def _string(self, token: _Token) -> str:
        if token.kind == "word":
            self._remark("bare-key", "keys without quotes", token.start)
            return token.text
        if token.text[0] == "'":
            self._remark("single-quotes", "single quotes", token.start)
        return _unescape(token.text[1:-1])

    def _number(self, token: _Token) -> int | float:
        if len(token.text) > MAX_DIGITS or math.isinf(value := float(token.text)):
            self._fail("this number is too large", offset=token.start)
        if re.fullmatch(r"[+-]?\d+", token.text):
            return int(token.text)
        return int(value) if value.is_integer() else value

    def _duplicate(self, path: KeyPath, offset: int) -> None:
        first = _place(self.file, self.text, self.spans[path].key)
        self.remarks.append(
            Finding(
                code="duplicate-key",
                where=dotted(path),
                message=f"`{path[-1]}` stands here a second time; the first is on line {first.line}",
                hint="keep one of the two: DeepSpeed refuses both, the Trainer takes the last",
                place=_place(self.file, self.text, offset),
            )
        )

    def _remark(self, code: str, what: str, offset: int) -> None:
        if any(remark.code == code for remark in self.remarks):
            return
        self.remarks.append(
            Finding(
                code=code,
                message=f"{what} are read by DeepSpeed, but not by transformers or accelerate",
                hint="`zlaunch train` hands strict JSON to both",
                severity=Severity.ADVICE,
                place=_place(self.file, self.text, offset),
            )
        )

    def _fail(self, message: str, hint: str | None = None, offset: int | None = None) -> NoReturn:
        place = _place(self.file, self.text, self._token.start if offset is None else offset)
        raise Refused([Finding("not-json", message, hint, place=place)])


def _quoted(token: _Token) -> str:
    return token.text if token.kind == "end" else f"`{token.text}`"


_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED: Mapping[str, str] = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


def _unescape(text: str) -> str:
    """Read the inside of a string as JSON does; what JSON would refuse, as JavaScript does."""

    def plain(match: re.Match[str]) -> str:
        code = match.group(1)
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPED.get(code, code)

    with contextlib.suppress(ValueError):
        return str(json.loads(f'"{text}"', strict=False))
    return _ESCAPE.sub(plain, text)
