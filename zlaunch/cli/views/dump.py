"""Values as strict JSON: what `--json` prints."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath


def to_json(value: object, indent: int | None = 2) -> str:
    """Write a value as JSON: a dataclass with all its fields, a path as text, NaN and infinity as strings.

    Without an indent, it is one compact line.
    """
    return json.dumps(dumped(value), indent=indent, separators=None if indent else (",", ":"))


def dumped(value: object) -> object:
    """Return what JSON has in place of a value."""
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): dumped(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [dumped(member) for member in value]
    if isinstance(value, Enum):
        return value.value
    is_odd = isinstance(value, float) and not math.isfinite(value)
    if is_odd or isinstance(value, PurePath):
        return str(value)
    return value
