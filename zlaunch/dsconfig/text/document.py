"""A parsed ds_config: its value, and the position of everything in it."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from zlaunch.errors import Finding, Place
from zlaunch.frozen import dataclass
from zlaunch.secrets import remember

KeyPath = tuple[str | int, ...]
BYTE_ORDER_MARK = "\ufeff"


class Span(NamedTuple):
    """Offsets into the text: where a key starts, and where its value starts and ends."""

    key: int
    start: int
    end: int
    key_end: int = 0
    """Where the key ends; 0 for list items."""


class Edit(NamedTuple):
    """Replacement of a piece of text."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Document:
    """A parsed ds_config: its plain value, and the place of everything in it."""

    file: str
    text: str
    value: dict[str, Any]
    spans: Mapping[KeyPath, Span]
    remarks: tuple[Finding, ...] = ()
    plain_edits: tuple[Edit, ...] = ()
    """Edits that make the text strict JSON, except for comments."""
    comment_edits: tuple[Edit, ...] = ()
    """Edits that delete the comments, with the space before them."""

    def __post_init__(self) -> None:
        """Remember its secrets, so that no message shows them."""
        remember(self.value)

    def place(self, path: KeyPath) -> Place:
        """Locate a key, or the innermost object around it if it is missing."""
        while path not in self.spans:
            path = path[:-1]
        span = self.spans[path]
        end, length = span.end, None
        if "\n" in self.text[span.key : span.end]:
            end = span.key_end
        if end:
            length = end - span.key
        return self._lines.place(span.key, length)

    @cached_property
    def _lines(self) -> "Lines":
        return Lines(self.file, self.text)

    def locate(self, finding: Finding) -> Finding:
        """Add its place to a finding."""
        if finding.place:
            return finding
        path, hint, beside = self.path_to(finding), finding.hint, finding.beside
        if beside is not None and beside in self.spans:
            together = "keep one of them"
            if isinstance(value_at(self.value, path), dict):
                together = "merge the two"
            hint = f"{together}: `{dotted(beside)}` is already on line {self.place(beside).line}"
        return replace(finding, place=self.place(path), hint=hint)

    def path_to(self, finding: Finding) -> KeyPath:
        """Find the key path that a finding is about; a key may contain dots or omit `stage3_`."""
        if finding.path is not None:
            return finding.path
        where = finding.where
        shorter = where.replace(".stage3_", ".")
        return self._paths.get(where) or self._paths.get(shorter) or tuple(where.split("."))

    def has(self, where: str) -> bool:
        """Whether the text has the key."""
        return where in self._paths

    @cached_property
    def _paths(self) -> dict[str, KeyPath]:
        return {dotted(path): path for path in self.spans if path}


def located(finding: Finding, base: Document | None) -> Finding:
    """Add the place in the user's file, if the key is in it."""
    if base is not None and base.has(finding.where):
        return base.locate(finding)
    return finding


def leaves(value: Mapping[str, object], above: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """List the path and value of everything that is not an object with keys of its own."""
    for key, child in value.items():
        if isinstance(child, Mapping) and child:
            yield from leaves(child, (*above, key))
        else:
            yield (*above, key), child


def put(value: dict[str, Any], path: KeyPath, leaf: object) -> None:
    """Set a key in place; objects on the way to it are created."""
    for part in path[:-1]:
        value = value.setdefault(str(part), {})
    value[str(path[-1])] = leaf


def value_at(value: object, path: KeyPath) -> object:
    """Follow a path into a plain value; None where it leads nowhere."""
    for part in path:
        if isinstance(value, list):
            value = dict(enumerate(value))
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def dotted(path: KeyPath) -> str:
    """Write a key path as users do: `zero_optimization.offload_param.device`."""
    return ".".join(str(part) for part in path)


class Lines:
    """A text whose offsets are looked up as places, many times."""

    def __init__(self, file: str, text: str) -> None:
        """Find where each line begins."""
        self.file, self.text = file, text
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def place(self, offset: int, length: int | None = 1) -> Place:
        """Turn an offset into a place; without a length it covers the name that starts there."""
        number = bisect_right(self._starts, offset)
        begin, end = self._starts[number - 1], self.text.find("\n", offset)
        begin += self.text.startswith(BYTE_ORDER_MARK) and begin == 0
        if end < 0:
            end = len(self.text)
        line = self.text[begin:end].rstrip("\r")
        column = max(0, offset - begin)
        if length is None:
            length = len(line[column:].partition(":")[0].rstrip())
        return Place(self.file, number, column + 1, line, max(1, length))


def place_at(file: str, text: str, offset: int, length: int | None = 1) -> Place:
    """Turn one offset into a place, as `Lines` does."""
    return Lines(file, text).place(offset, length)
