"""What one key does."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KeyEffect:
    """What a key does to memory and speed, and which keys go with it."""

    memory: str
    speed: str
    related: tuple[str, ...] = ()
    """Dotted keys, from the top."""
    example: Any = None
    """A value that somebody would write; None for one made from the type."""
