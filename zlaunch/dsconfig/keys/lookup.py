"""Find the model, fields and keys of an object in a ds_config by its path."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, get_args, get_origin

from pydantic import Discriminator, Tag
from pydantic.fields import FieldInfo

from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.section import Section
from zlaunch.dsconfig.text.document import KeyPath, value_at


def known_keys(whole: Mapping[str, object], path: KeyPath) -> list[str]:
    """List the keys that DeepSpeed knows in the object at `path`."""
    section = section_at(whole, path)
    if section is None:
        return []
    return list(section.model_fields)


def section_at(whole: Mapping[str, object], path: KeyPath) -> type[Section] | None:
    """Find the model of the object at `path`; None where any key is allowed."""
    section: type[Section] | None = DsConfig
    value: object = whole
    for part in path:
        value = value_at(value, (part,))
        if section is None:
            return None
        if info := section.model_fields.get(str(part)):
            section = section_in(info.annotation, value)
        elif isinstance(part, str) and not isinstance(value, dict):
            return None
    return section


def field_at(whole: Mapping[str, object], path: KeyPath) -> FieldInfo | None:
    """Find the field of the key at `path`."""
    section = section_at(whole, path[:-1])
    if section is None:
        return None
    return section.model_fields.get(str(path[-1]))


def fields() -> tuple[tuple[KeyPath, FieldInfo], ...]:
    """List every key; of a choice of sections, only those of the default."""
    return _FIELDS


def _fields(section: type[Section], above: KeyPath) -> Iterator[tuple[KeyPath, FieldInfo]]:
    for name, field in section.model_fields.items():
        yield (*above, name), field
        if inner := section_in(field.annotation):
            yield from _fields(inner, (*above, name))


def parts(annotation: object) -> Iterator[object]:
    """List a type and everything in it, with the words of a `Literal`."""
    yield annotation
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
        return
    for part in get_args(annotation):
        yield from parts(part)


def section_in(annotation: object, value: object = None) -> type[Section] | None:
    """Find the model in a type; in a union, the one that this value selects."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    arms = get_args(annotation)
    if get_origin(annotation) is Annotated:
        arms, notes = arms[:1], arms[1:]
        for note in notes:
            if isinstance(note, Discriminator) and callable(note.discriminator):
                tag = Tag(str(note.discriminator(value)))
                arms = tuple(arm for arm in get_args(arms[0]) if tag in get_args(arm))
    return next(filter(None, (section_in(arm, value) for arm in arms)), None)


_FIELDS = tuple(_fields(DsConfig, ()))
