"""Compare two ds_configs: the keys that mean something else, and their effects."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from zlaunch.dsconfig.canonical import canonical, plain
from zlaunch.dsconfig.keys.effects import KeyEffect, effects
from zlaunch.dsconfig.keys.lookup import field_at, section_at
from zlaunch.dsconfig.keys.read_at import stages_reading, switches_over
from zlaunch.dsconfig.releases import NEWEST, Release
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import KeyPath, dotted, leaves, value_at
from zlaunch.frozen import dataclass
from zlaunch.secrets import hide_in

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

    def without_secret(self, key: str) -> "Cell":
        """Hide the value if that of its key is secret."""
        return replace(self, value=hide_in(self.value, key))

    def __str__(self) -> str:
        """Write it as JSON."""
        if self.note in ("absent", "not read"):
            return f"({self.note})"
        if self.note:
            return f"{json.dumps(self.value)} ({self.note})"
        return json.dumps(self.value)


@dataclass(frozen=True, slots=True)
class Difference:
    """A key that differs between two configs."""

    key: str
    cells: tuple[Cell, Cell]
    effect: KeyEffect | None
    """None if it is not known, or not one on memory or speed."""


@dataclass(frozen=True)
class _Side:
    """One config, as a release reads it."""

    written: Mapping[str, object]
    release: Release

    @cached_property
    def config(self) -> dict[str, object]:
        """The config with current names and plain values."""
        return canonical(self.written)

    @cached_property
    def leaves(self) -> Mapping[KeyPath, object]:
        """Every written value, without empty sections whose presence has no effect."""
        return {path: value for path, value in leaves(self.config) if value != {} or self._has_effect(path)}

    def _has_effect(self, empty: KeyPath) -> bool:
        return empty in _PRESENCE or section_at(self.config, empty) is None

    def cell(self, path: KeyPath) -> Cell:
        """Give the value of a key in this config."""
        is_unread = self._is_unread(path)
        if path in self.leaves and not is_unread:
            return Cell(self.leaves[path])
        default = self._default(path)
        if is_unread:
            return Cell(None if default is None else default[0], "not read")
        if default is None:
            return Cell(None, "absent")
        return Cell(default[0], "default")

    def _default(self, path: KeyPath) -> tuple[object] | None:
        parents = [path[:end] for end in range(1, len(path))]
        if any(parent in _PRESENCE and value_at(self.config, parent) is None for parent in parents):
            return None
        if path == _OVERLAP:
            return (self.stage == 3,)
        default = self.release.default(path)
        if default is not None:
            return (plain(default, path, self.config),)
        return self._schema_default(path)

    def _schema_default(self, path: KeyPath) -> tuple[object] | None:
        """The default that only the schema has: no release is recorded with a default that is no scalar."""
        field = field_at(self.config, path)
        if field is None or field.is_required() or not self.release.knows(path):
            return None
        if field.default is not None and not isinstance(field.default, bool | int | float | str | list):
            return None
        return (field.default,)

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
        field = field_at(self.config, switch)
        return field is not None and self.leaves.get(switch, field.default) is False


def _is_read(path: KeyPath, stage: int) -> bool:
    """Whether a stage reads a key below `zero_optimization`; unknown keys count as read."""
    try:
        return stage in stages_reading(dotted(path))
    except KeyError:
        return True


def compare(
    left: Mapping[str, object], right: Mapping[str, object], release: Release = NEWEST
) -> tuple[Difference, ...]:
    """Compare two configs as a DeepSpeed release reads them."""
    sides = _Side(left, release), _Side(right, release)
    differences = []
    for path in _by_section([*dict.fromkeys([*sides[0].leaves, *sides[1].leaves])]):
        cells = (sides[0].cell(path), sides[1].cell(path))
        if not _means_the_same(*cells):
            name = dotted(path)
            shown = cells[0].without_secret(name), cells[1].without_secret(name)
            differences.append(Difference(name, shown, effects().get(name)))
    return tuple(differences)


def _by_section(paths: list[KeyPath]) -> list[KeyPath]:
    """Move the keys of a section to where its first key is."""
    first: dict[KeyPath, int] = {}
    for number, path in enumerate(paths):
        for end in range(1, len(path) + 1):
            first.setdefault(path[:end], number)
    return sorted(paths, key=lambda path: [first[path[:end]] for end in range(1, len(path) + 1)])


def _means_the_same(left: Cell, right: Cell) -> bool:
    if (left.note == "absent") != (right.note == "absent") and not (left.note and right.note):
        return False
    return bool(left.value == right.value) and isinstance(left.value, bool) == isinstance(right.value, bool)
