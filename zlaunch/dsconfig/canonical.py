"""Normalize a ds_config: current names, numbers as numbers, lower-case words.

Two configs that DeepSpeed reads alike are equal here, except for defaults and keys that it does not read.
"""

import copy
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BeforeValidator

from zlaunch.dsconfig.keys.lookup import field_at, parts, section_at
from zlaunch.dsconfig.schema.optimizer import KIND_OF
from zlaunch.dsconfig.schema.section import ZERO, Section, in_lower_case, spellings
from zlaunch.dsconfig.text.document import KeyPath, leaves, put, value_at
from zlaunch.units import narrowed


class OldName(NamedTuple):
    """The old and the new path of a key."""

    old: KeyPath
    new: KeyPath
    section: Mapping[str, Any] | None = None
    """The section that replaces `true`, where a switch became a section."""

    def today(self, value: object) -> object:
        """Convert a value of the old key to the new one; None if it has no effect."""
        if self.section is None:
            return value
        if value is True:
            return {**self.section}
        return None


OLD_NAMES: tuple[OldName, ...] = (
    OldName(
        (ZERO, "stage3_gather_fp16_weights_on_model_save"),
        (ZERO, "stage3_gather_16bit_weights_on_model_save"),
    ),
    OldName(("bfloat16",), ("bf16",)),
    OldName((ZERO, "cpu_offload"), (ZERO, "offload_optimizer"), {"device": "cpu"}),
    OldName((ZERO, "cpu_offload_param"), (ZERO, "offload_param"), {"device": "cpu"}),
)
"""Keys that DeepSpeed renamed and still reads under their old names."""

_NUMBER = r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?"


def canonical(value: Mapping[str, object]) -> dict[str, object]:
    """Normalize a config."""
    whole = copy.deepcopy(dict(value))
    whole.pop("$schema", None)
    _rename_aliases(whole, whole, ())
    _replace_old_names(whole)
    for path, leaf in [*leaves(whole)]:
        put(whole, path, plain(leaf, path, whole))
    return whole


def _rename_aliases(node: dict[str, object], whole: dict[str, object], path: KeyPath) -> None:
    names = _aliases(section_at(whole, path))
    renamed: dict[str, object] = {}
    for key, child in node.items():
        name = names.get(key, key)
        is_taken = name in node or name in renamed
        renamed[key if is_taken else name] = child
    node.clear()
    node.update(renamed)
    for key, child in node.items():
        if isinstance(child, dict):
            _rename_aliases(child, whole, (*path, key))


def _aliases(section: type[Section] | None) -> dict[str, str]:
    """Map other spellings of the keys of a section to them."""
    if section is None:
        return {}
    names: dict[str, str] = {}
    for key in section.model_fields:
        names |= dict.fromkeys(spellings(section, key), key)
    return names


def _replace_old_names(whole: dict[str, object]) -> None:
    for name in OLD_NAMES:
        section = value_at(whole, name.old[:-1])
        value = None
        if isinstance(section, dict):
            value = name.today(section.pop(name.old[-1], None))
        if value is not None and value_at(whole, name.new) is None:
            put(whole, name.new, value)


def plain(value: object, path: KeyPath, whole: dict[str, object]) -> object:
    """Normalize a value as far as its key's type allows."""
    field = field_at(whole, path)
    if isinstance(value, list):
        return [_narrow(item) for item in value]
    if path == ("optimizer", "type") and str(value).lower() in KIND_OF:
        return str(value).lower()
    if field is None or isinstance(value, bool):
        return value
    types = [*parts(field.annotation), *field.metadata]
    if isinstance(value, str) and any(
        isinstance(part, BeforeValidator) and part.func is in_lower_case for part in types
    ):
        return value.lower()
    is_number = any(part in (int, float) or (isinstance(part, int) and part is not True) for part in types)
    if isinstance(value, str) and is_number and re.fullmatch(_NUMBER, value):
        return _narrow(float(value))
    return _narrow(value)


def _narrow(value: object) -> object:
    if isinstance(value, float):
        return narrowed(value)
    return value
