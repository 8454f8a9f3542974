"""What one key does."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KeyEffect:
    """The effect of a key on memory and speed, and related keys."""

    memory: str
    speed: str
    related: tuple[str, ...] = ()
    """Dotted keys, from the top."""
    example: object = None
    """A typical value; None to derive one from the type."""
