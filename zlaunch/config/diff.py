"""Compare two ds_configs: differences in meaning, and differences only in writing."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from zlaunch.dsconfig.canonical import canonical, plain
from zlaunch.dsconfig.keys.lookup import field_at, section_at
from zlaunch.dsconfig.keys.read_at import stages_reading, switches_over
from zlaunch.dsconfig.releases import NEWEST, Release
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import Document, KeyPath, dotted, leaves, value_at

_PRESENCE: frozenset[KeyPath] = frozenset(
    {
        ("optimizer",),
        ("scheduler",),
        ("weight_quantization",),
        ("datastates_ckpt",),
        ("checkpoint", "writer"),
        (ZERO, "zenflow"),
    }
)
"""Sections whose presence has an effect; if absent, their keys have no defaults."""

_OFFLOADS = ((ZERO, "offload_optimizer"), (ZERO, "offload_param"))
_OVERLAP = (ZERO, "overlap_comm")


@dataclass(frozen=True, slots=True)
class Cell:
    """The value of a key in one config."""

    value: object
    note: str = ""
    """`default`, `absent` or `not read`; empty if the key is written."""

    def __str__(self) -> str:
        """Write it as JSON."""
        if self.note in ("absent", "not read"):
            return f"({self.note})"
        return f"{json.dumps(self.value)}{f' ({self.note})' if self.note else ''}"


@dataclass(frozen=True, slots=True)
class Difference:
    """A key that differs between two configs."""

    key: str
    cells: tuple[Cell, Cell]
    why: str = ""
    """Why it does not matter; empty if it does."""


@dataclass(frozen=True)
class ConfigDiff:
    """All differences between two configs."""

    differences: tuple[Difference, ...]
    harmless: tuple[Difference, ...]


@dataclass(frozen=True)
class _Side:
    """One config, as a release reads it."""

    document: Document
    release: Release

    @cached_property
    def canonical(self) -> tuple[dict[str, object], dict[KeyPath, KeyPath]]:
        return canonical(self.document.value)

    @cached_property
    def leaves(self) -> Mapping[KeyPath, object]:
        """Every written value, without empty sections whose presence has no effect."""
        return {
            path: value
            for path, value in leaves(self.canonical[0])
            if value != {} or path in _PRESENCE or section_at(self.canonical[0], path) is None
        }

    def cell(self, path: KeyPath) -> Cell:
        """Give the value of a key in this config."""
        unread = self._is_unread(path)
        if path in self.leaves and not unread:
            return Cell(self.leaves[path])
        default = self._default(path)
        if default is not None:
            return Cell(default[0], "not read" if unread else "default")
        return Cell(None, "not read" if unread else "absent")

    def _default(self, path: KeyPath) -> tuple[object] | None:
        whole, release = self.canonical[0], self.release
        parents = [path[:end] for end in range(1, len(path))]
        if any(parent in _PRESENCE and value_at(whole, parent) is None for parent in parents):
            return None
        if path == _OVERLAP:
            return (self.stage == 3,)
        if release.default(path) is not None:
            return (plain(release.default(path), path, whole),)
        field = field_at(whole, path)
        if field is None or field.is_required() or not release.knows(path):
            return None
        is_value = field.default is None or isinstance(field.default, bool | int | float | str | list)
        is_older = release != NEWEST and path in release.keys
        return ((None if is_older else field.default),) if is_value else None

    @property
    def stage(self) -> object:
        """The ZeRO stage."""
        return self.leaves.get((ZERO, "stage"), 0)

    def _is_unread(self, path: KeyPath) -> bool:
        """Whether DeepSpeed ignores a key because of other keys."""
        if path[0] == ZERO and isinstance(self.stage, int) and not _is_read(path[1:], self.stage):
            return True
        if path[:2] in _OFFLOADS and len(path) > 2 and path[2] != "device":
            return bool(self.leaves.get((*path[:2], "device"), "none") == "none")
        return any(map(self._is_off, switches_over(path)))

    def _is_off(self, switch: KeyPath) -> bool:
        field = field_at(self.canonical[0], switch)
        return field is not None and self.leaves.get(switch, field.default) is False

    def text(self, path: KeyPath) -> tuple[str, str]:
        """Quote a key and its value as written; empty if they are not."""
        original = self._original(path)
        span = self.document.spans.get(original)
        return ("", "") if span is None else (dotted(original), self.document.text[span.start : span.end])

    def _original(self, path: KeyPath) -> KeyPath:
        renamed = self.canonical[1]
        for end in range(len(path), 0, -1):
            if path[:end] in renamed:
                return (*renamed[path[:end]], *path[end:])
        return path

    @property
    def idle(self) -> set[KeyPath]:
        """Find what is written without effect: an empty section, an old switch that is off."""
        kept = {self._original(path) for path in self.leaves}
        return {path for path, _ in leaves(self.document.value) if path not in kept}


def _is_read(path: KeyPath, stage: int) -> bool:
    """Whether a stage reads a key below `zero_optimization`; unknown keys count as read."""
    try:
        return stage in stages_reading(dotted(path))
    except KeyError:
        return True


def compare(left: Document, right: Document, release: Release = NEWEST) -> ConfigDiff:
    """Compare two configs as a DeepSpeed release reads them."""
    sides = _Side(left, release), _Side(right, release)
    paths = list(dict.fromkeys(itertools.chain(*(side.leaves for side in sides))))
    differences, harmless = [], []
    for path in sorted(paths, key=lambda path: [_rank(paths, path[:end]) for end in range(1, len(path) + 1)]):
        cells = (sides[0].cell(path), sides[1].cell(path))
        if _means_the_same(*cells):
            texts = [side.text(path) for side in sides]
            if texts[0] != texts[1]:
                harmless.append(Difference(dotted(path), cells, _why(cells, texts)))
        else:
            differences.append(Difference(dotted(path), cells))
    return ConfigDiff(tuple(differences), (*harmless, *_of_form(*sides)))


def _rank(paths: list[KeyPath], start: KeyPath) -> int:
    """Sort the keys of a section to where its first key is."""
    return next(number for number, path in enumerate(paths) if path[: len(start)] == start)


def _means_the_same(left: Cell, right: Cell) -> bool:
    if (left.note == "absent") != (right.note == "absent") and not (left.note and right.note):
        return False
    return bool(left.value == right.value) and isinstance(left.value, bool) == isinstance(right.value, bool)


def _why(cells: tuple[Cell, Cell], texts: Sequence[tuple[str, str]]) -> str:
    notes = {cell.note for cell in cells}
    if "not read" in notes:
        return "not read"
    if "default" in notes:
        return "the explicit default"
    (first, _), (second, _) = texts
    if not (first and second):
        return "written by accelerate itself"
    return "different notation" if first == second else f"`{first}` and `{second}` are the same key"


def _of_form(left: _Side, right: _Side) -> Iterator[Difference]:
    """Find differences of form: keys without effect, the order of keys, what is not strict JSON."""
    nothing = (Cell(None, "absent"), Cell(None, "absent"))
    for path in sorted(left.idle ^ right.idle, key=dotted):
        yield Difference(dotted(path), nothing, "no effect")
    spans = [side.document.spans for side in (left, right)]
    orders = [[path for path in one if path in other] for one, other in (spans, spans[::-1])]
    if orders[0] != orders[1]:
        yield Difference("", nothing, "different order of keys")
    if bool(left.document.strict_edits) != bool(right.document.strict_edits):
        yield Difference("", nothing, "comments, or other extensions of JSON")
