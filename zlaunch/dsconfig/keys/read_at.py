"""The stages and switches at which DeepSpeed reads a key."""

from collections.abc import Iterator, Mapping
from typing import TypeVar

from zlaunch.dsconfig.keys.lookup import field_at, fields
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.schema.zero import ReadAt
from zlaunch.dsconfig.text.document import dotted

Part = TypeVar("Part", bound=str | int)


def stages_reading(key: str) -> frozenset[int]:
    """Find the stages that read a dotted key below `zero_optimization`; raise KeyError if unknown."""
    path = (ZERO, *key.split("."))
    for end in range(len(path), 1, -1):
        field = field_at({}, path[:end])
        for note in field.metadata if field else ():
            if isinstance(note, ReadAt):
                return note.stages
    raise KeyError(key)


_SWITCHES = [(path, field) for path, field in fields() if path[-1] in ("enabled", "deepcompile")]

SWITCHES: Mapping[str, str] = {dotted(path[:-1]): str(path[-1]) for path, _ in _SWITCHES}
"""Section → the key that turns it on or off."""

OFF_BY_DEFAULT: Mapping[str, str] = {
    dotted(path[:-1]): str(path[-1]) for path, field in _SWITCHES if not field.default
}
"""Section → the key that turns it on."""


def switches_over(path: tuple[Part, ...]) -> Iterator[tuple[Part | str, ...]]:
    """List the switches of the sections around a key, outermost first; a switch is not its own."""
    for end in range(1, len(path)):
        key = SWITCHES.get(dotted(path[:end]))
        if key is not None and (*path[:end], key) != path:
            yield *path[:end], key
