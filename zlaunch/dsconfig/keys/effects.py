"""Effects of keys on memory and speed, as `effects.json` has them with their sources."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from zlaunch.frozen import dataclass

FILE: Final = Path(__file__).with_name("effects.json")


@dataclass(frozen=True)
class KeyEffect:
    """The effect of a key on memory and speed, and related keys."""

    memory: str
    speed: str
    related: tuple[str, ...] = ()
    """Dotted keys, from the top."""
    example: object = None
    """A typical value; None to derive one from the type."""
    default: str = ""
    """What applies without the key, if that is no one value."""


@cache
def effects() -> Mapping[str, KeyEffect]:
    """Map each dotted key whose effect is known to it."""
    rows = json.loads(FILE.read_text("utf-8"))["keys"]
    return {key: KeyEffect(**{**row, "related": tuple(row.get("related", ()))}) for key, row in rows.items()}
