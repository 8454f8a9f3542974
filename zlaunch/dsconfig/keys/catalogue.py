"""Every key of a ds_config by name, and the search for a name that a user types."""

import difflib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import get_args, get_origin

from pydantic.fields import FieldInfo

from zlaunch.dsconfig.releases import NEWEST, RELEASES, Release
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.section import Section
from zlaunch.dsconfig.text.document import KeyPath, dotted

ANY = "*"
"""Placeholder in a path for names and numbers that users choose."""


@dataclass(frozen=True)
class Entry:
    """One key in one section; a setting of optimizers or schedulers has an entry for each that has it."""

    path: KeyPath
    section: type[Section]

    @property
    def field(self) -> FieldInfo:
        """Its field."""
        return self.section.model_fields[str(self.path[-1])]


@functools.cache
def entries() -> Mapping[str, tuple[Entry, ...]]:
    """Name every key that the newest release reads."""
    found: dict[str, tuple[Entry, ...]] = {}
    for entry in _walk(DsConfig, ()):
        name = dotted(entry.path)
        found[name] = (*found.get(name, ()), entry)
    return found


def _walk(section: type[Section], above: KeyPath) -> Iterator[Entry]:
    for name, field in section.model_fields.items():
        path = (*above, name)
        yield Entry(path, section)
        for child, between in _sections_in(field.annotation, ()):
            yield from _walk(child, (*path, *between))


def _sections_in(annotation: object, between: KeyPath) -> Iterator[tuple[type[Section], KeyPath]]:
    """Find the models in a type, with a placeholder below lists and tables."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation, between
    deeper = (*between, ANY) if get_origin(annotation) in (list, dict) else between
    for part in get_args(annotation):
        yield from _sections_in(part, deeper)


@functools.cache
def _other_names() -> Mapping[str, str]:
    """Other spelling of a key → its name."""
    return {
        ".".join((*map(str, entry.path[:-1]), str(choice))): name
        for name, same in entries().items()
        for entry in same
        for choice in getattr(entry.field.validation_alias, "choices", ())
        if choice != entry.path[-1]
    }


@functools.cache
def renamed_entry() -> frozenset[str]:
    """List the keys that only older releases read."""
    names = {dotted(path) for release in RELEASES for path in Release(release).reads.keys}
    kept = {dotted(path) for path in NEWEST.reads.keys}
    return frozenset(names - kept - {*entries()} - {*_other_names()})


def find(text: str) -> list[str]:
    """Find the keys that a name can mean: the whole path or the end of it."""
    asked = text.strip().strip(".").replace("-", "_")
    others = _other_names()
    names = [*entries(), *others, *sorted(renamed_entry())]
    exact = [name for name in names if name == asked]
    ending = [name for name in names if name.endswith(f".{asked}")]
    return list(dict.fromkeys(others.get(name, name) for name in exact or ending))


def near(text: str) -> list[str]:
    """List similar keys, best first."""
    last = text.rpartition(".")[2].lower()
    ends: dict[str, str] = {}
    for name in [*entries(), *_other_names()]:
        ends.setdefault(name.rpartition(".")[2], name)
    wholes = difflib.get_close_matches(text.lower(), [*entries()], 3, 0.75)
    return list(
        dict.fromkeys([*wholes, *(ends[end] for end in difflib.get_close_matches(last, [*ends], 3, 0.7))])
    )[:3]
