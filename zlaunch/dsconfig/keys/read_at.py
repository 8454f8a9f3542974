"""At which stages, and under which switch, DeepSpeed reads a key; otherwise it ignores it."""

from collections.abc import Iterator, Mapping
from typing import TypeVar

from zlaunch.dsconfig.keys.lookup import field_at, section_in
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.section import ZERO, Section
from zlaunch.dsconfig.schema.zero import ReadAt
from zlaunch.dsconfig.text.document import KeyPath, dotted

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


def _switches(section: type[Section], above: KeyPath) -> Iterator[tuple[str, str, bool]]:
    """List the sections with a switch: where they are, the switch and its default."""
    for name, field in section.model_fields.items():
        if inner := section_in(field.annotation):
            if switch := inner.model_fields.get(inner.switch):
                yield dotted((*above, name)), inner.switch, switch.default
            yield from _switches(inner, (*above, name))


_FOUND = tuple(_switches(DsConfig, ()))

SWITCHES: Mapping[str, str] = {section: key for section, key, _ in _FOUND}
"""Section → the key that turns it on or off."""

OFF_BY_DEFAULT: Mapping[str, str] = {section: key for section, key, default in _FOUND if not default}
"""Section → the key that turns it on."""


def switches_over(path: tuple[Part, ...]) -> Iterator[tuple[Part | str, ...]]:
    """List the switches of the sections around a key, outermost first; a switch is not its own."""
    for end in range(1, len(path)):
        key = SWITCHES.get(dotted(path[:end]))
        if key is not None and (*path[:end], key) != path:
            yield *path[:end], key
