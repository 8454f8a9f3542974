"""Values as JSON, and what programs of zlaunch answer on stdout: JSON objects on lines of their own.

A login shell, an import of torch or a debugger may print to the same stream, so each object has the member
`zlaunch`; all other lines are ignored.
"""

import contextlib
import json
import sys
from collections.abc import Mapping, Set
from enum import Enum
from math import isfinite
from typing import Any

ANSWER = "zlaunch"
"""The member that has the answer."""


def answer(value: object) -> None:
    """Write an answer to stdout, on a line of its own even if the one before has no end."""
    sys.stdout.write(f"\n{json.dumps({ANSWER: plain(value)})}\n")
    sys.stdout.flush()


def answers_in(text: str) -> list[Any]:
    """Return the answers among what a program has printed."""
    found = []
    for line in text.split("\n"):
        with contextlib.suppress(ValueError, RecursionError):
            message = json.loads(line) if line.startswith("{") else None
            if isinstance(message, dict) and ANSWER in message:
                found.append(message[ANSWER])
    return found


def plain(value: Any, *, strict: bool = False) -> Any:
    """Return what JSON has in place of a value: dataclasses and named tuples become objects, paths text.

    NaN and infinity, which Python's JSON has, become text if it is strict.
    """
    if hasattr(type(value), "__dataclass_fields__"):
        from dataclasses import fields  # slow, and a script waits for the imports of this module

        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif hasattr(type(value), "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): plain(member, strict=strict) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [plain(member, strict=strict) for member in value]
    if isinstance(value, Set):
        return sorted((plain(member, strict=strict) for member in value), key=str)
    if isinstance(value, Enum):
        return value.value
    is_odd = strict and isinstance(value, float) and not isfinite(value)
    if value is None or (isinstance(value, bool | int | float | str) and not is_odd):
        return value
    return str(value)
