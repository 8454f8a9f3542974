"""Parse the YAML of accelerate's configs, keeping the position of every value.

PyYAML reads YAML 1.1, as it does for accelerate. Where that reads a number such as `2e8` as text, the
value is the number that was meant. What JSON cannot represent (anchors, tags, dates as keys) is refused.
"""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from zlaunch.dsconfig.text.document import Document, KeyPath, Span, dotted, place_at
from zlaunch.dsconfig.text.parser import MAX_DEPTH, MAX_DIGITS
from zlaunch.errors import Finding, InputMissing, Place, Refused, Severity
from zlaunch.units import narrowed

_TAG = "tag:yaml.org,2002:"
_MERGE = "<<"
_TEXT = ("str", "timestamp", "value", "merge")
"""Tags of what is a string in JSON; YAML 1.1 reads some of it as dates."""
_CONSTRUCTED = ("null", "bool", "int", "float")
_Node: TypeAlias = Any
"""A node of PyYAML, which has no types."""
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)[eE][+-]?\d+")


def read(file: Path) -> Document:
    """Read a YAML file; raise InputMissing if it cannot be read, Refused with the place of an error."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise Refused([Finding("not-text", "not UTF-8 text", place=Place(str(file), line, 1))]) from None
    except OSError as error:
        raise InputMissing(f"cannot read `{file}`: {error.strerror}") from None
    return parse(text, str(file))


def parse(text: str, file: str) -> Document:
    """Parse YAML text whose root is a mapping; raise Refused with the place of an error."""
    reader = _YamlReader(text, file)
    value = reader.document()
    return Document(file, text, value, reader.spans, tuple(reader.remarks))


@dataclass
class _YamlReader:
    """One pass over a text: the value, spans and remarks."""

    text: str
    file: str
    spans: dict[KeyPath, Span] = field(default_factory=dict)
    remarks: list[Finding] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        root = self._compose()
        if root is None or root.id != "mapping":
            self._fail("a config must be one mapping", 0, "write `key: value` lines")
        value = self._value(root, ())
        assert isinstance(value, dict), "a mapping with another tag is refused"
        start = root.start_mark.index
        self.spans[()] = Span(start, start, self._end(root))
        return value

    def _compose(self) -> _Node:
        import yaml

        try:
            self._refuse_what_cannot_be_walked(yaml.parse(self.text, Loader=yaml.SafeLoader))
            return yaml.compose(self.text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self._fail(str(error.problem or error.context), mark.index if mark else 0)
        except yaml.reader.ReaderError as error:
            self._fail("YAML does not allow this character", error.position)
        except (ValueError, OverflowError):  # chr() of an escape such as "\U99999999", inside PyYAML
            self._fail("an escape in this file names no character", max(0, self.text.find("\\U")))

    def _refuse_what_cannot_be_walked(self, events: Any) -> None:
        """Refuse deep nesting before PyYAML recurses, and aliases, which can grow without end."""
        import yaml

        depth = 0
        for event in events:
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                self._fail(f"nested more than {MAX_DEPTH} levels deep", event.start_mark.index)
            if isinstance(event, yaml.AliasEvent):
                self._fail(
                    f"zlaunch does not expand aliases such as `*{event.anchor}`",
                    event.start_mark.index,
                    "write the values out",
                )

    def _value(self, node: _Node, path: KeyPath) -> object:
        kind = node.tag.removeprefix(_TAG)
        if node.id == "mapping" and kind == "map":
            return self._mapping(node, path)
        if node.id == "sequence" and kind == "seq":
            return self._sequence(node, path)
        if node.id == "scalar" and kind in _TEXT:
            return self._text(node)
        if node.id == "scalar" and kind in _CONSTRUCTED:
            return self._constructed(node)
        offset = node.start_mark.index
        return self._fail(f"tag `{self.text[offset:].split()[0]}`: JSON has no tags", offset)

    def _mapping(self, node: _Node, path: KeyPath) -> dict[str, Any]:
        written: dict[str, tuple[int, _Node]] = {}
        for key_node, value_node in node.value:
            offset, key = key_node.start_mark.index, self._key(key_node)
            if key in written:
                self._duplicate((*path, key), written[key][0], offset)
            written[key] = offset, value_node
        members: dict[str, Any] = {}
        for key, (offset, value_node) in written.items():
            here = (*path, key)
            members[key] = self._value(value_node, here)
            self.spans[here] = Span(offset, value_node.start_mark.index, self._end(value_node))
        return members

    def _key(self, node: _Node) -> str:
        if node.id != "scalar":
            self._fail("a key must be a plain word", node.start_mark.index)
        if node.value == _MERGE and node.style is None:
            self._fail("merge key `<<`: JSON has no merge keys", node.start_mark.index)
        return str(node.value)

    def _sequence(self, node: _Node, path: KeyPath) -> list[object]:
        items: list[object] = []
        for position, item in enumerate(node.value):
            here, start = (*path, position), item.start_mark.index
            items.append(self._value(item, here))
            self.spans[here] = Span(start, start, self._end(item))
        return items

    def _end(self, node: _Node) -> int:
        """Find the end of a value; PyYAML ends a block at the next token."""
        if node.id == "scalar" or node.flow_style or not node.value:
            return int(node.end_mark.index)
        last = node.value[-1]
        return self._end(last[1] if node.id == "mapping" else last)

    def _text(self, node: _Node) -> str | int | float:
        text = str(node.value)
        is_plain = node.style is None and not self.text.startswith("!", node.start_mark.index)
        if not is_plain or not _NUMBER.fullmatch(text):
            return text
        number = self._number(float(text), node)
        self.remarks.append(
            Finding(
                "yaml-number",
                f"YAML 1.1 reads `{text}` as text; zlaunch reads it as {number}",
                hint=f"write `{number}`",
                severity=Severity.ADVICE,
                place=self._place(node.start_mark.index, len(text)),
            )
        )
        return number

    def _constructed(self, node: _Node) -> object:
        """Construct a plain scalar as PyYAML does."""
        import yaml

        offset = node.start_mark.index
        if len(node.value) > MAX_DIGITS:
            self._fail("this number is too large", offset)
        try:
            value = yaml.constructor.SafeConstructor().construct_object(node)
        except (ValueError, KeyError):
            self._fail(f"`{node.value}` is not a valid `{node.tag.removeprefix(_TAG)}`", offset)
        if isinstance(value, float):
            return self._number(value, node)
        return value

    def _number(self, value: float, node: _Node) -> int | float:
        if not math.isfinite(value):
            self._fail(f"JSON cannot represent the number `{node.value}`", node.start_mark.index)
        return narrowed(value)

    def _duplicate(self, path: KeyPath, before: int, offset: int) -> None:
        self.remarks.append(
            Finding(
                code="duplicate-key",
                where=dotted(path),
                message=f"duplicate key `{path[-1]}`; the first is on line {self._place(before).line}. "
                "PyYAML uses the last",
                hint="keep one of the two",
                severity=Severity.IGNORED,
                place=self._place(offset, len(str(path[-1]))),
            )
        )

    def _place(self, offset: int, length: int = 1) -> Place:
        return place_at(self.file, self.text, offset, length)

    def _fail(self, message: str, offset: int, hint: str | None = None) -> NoReturn:
        raise Refused([Finding("not-yaml", message, hint, place=self._place(offset))])
