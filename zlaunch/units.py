"""How amounts are read, and how they are written for people."""

from typing import Any


def whole(value: Any) -> int | None:
    """Read a whole number; None for anything else, such as "auto" or true."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def duration(seconds: float) -> str:
    """Write a time as `42 s`, `3 min 05 s` or `2 h 07 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def plural(count: int, noun: str) -> str:
    """Write `1 rank`, `2 ranks`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
