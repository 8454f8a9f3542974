"""What zlaunch's models say about a key: its names, its default, its choices."""

from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from zlaunch.dsconfig.keys.lookup import field_at, section_at
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.section import Section

Path = tuple[str, ...]
NO_DEFAULT = "<required>"


def default_of(field: FieldInfo) -> Any:
    """Write a default as JSON has it; sections inside sections are left to their own models."""
    if field.is_required():
        return NO_DEFAULT
    return plain(field.get_default(call_default_factory=True))


def plain(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case tuple():
            return list(value)
    return value


def plain_defaults(model: type[Section]) -> dict[str, Any]:
    """Name the keys of a section that are values, with their defaults."""
    found = {name: default_of(field) for name, field in model.model_fields.items()}
    return {name: value for name, value in found.items() if not isinstance(value, BaseModel)}


def choices(model: type[Section], key: str) -> set[Any]:
    """Name the words and numbers that a key can be, other than "auto"."""
    return set(_literals(model.model_fields[key].annotation)) - {"auto"}


def nested(path: Path, value: Any) -> dict[str, Any]:
    """Put one value into an otherwise empty ds_config."""
    for key in reversed(path):
        value = {key: value}
    whole: dict[str, Any] = value
    return whole


def all_paths(path: Path = ()) -> Iterator[Path]:
    """Walk every key of a ds_config that stands at a fixed place."""
    section = section_at(nested(path, {}), path) if path else DsConfig
    for name in section.model_fields if section else ():
        yield (*path, name)
        if name not in ("optimizer", "scheduler"):
            yield from all_paths((*path, name))


def can_be_auto(path: Path) -> bool:
    """Whether the word "auto" stands in the type of a key; any text can be "auto" by chance."""
    field = field_at(nested(path, {}), path)
    return field is not None and "auto" in _literals(field.annotation)


def _literals(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            yield from _literals(part)
