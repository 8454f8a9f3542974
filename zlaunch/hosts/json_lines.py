"""What programs of zlaunch answer on stdout: JSON objects on lines of their own.

A login shell, an import of torch or a debugger may print to the same stream, so each object has the member
`zlaunch`; all other lines are ignored.
"""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Mapping, Set
from pathlib import PurePath
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


def plain(value: Any) -> Any:
    """Turn a frozen value into what JSON has: dataclasses and named tuples become objects."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | Set):
        members = [plain(one) for one in value]
        return sorted(members) if isinstance(value, Set) else members
    return str(value) if isinstance(value, PurePath) else value
