"""How amounts are read, and how they are written for people."""

from typing import Any


def whole(value: Any) -> int | None:
    """Read a whole number; None for anything else, such as "auto" or true."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def narrowed(value: float) -> int | float:
    """Make an integer of a finite number that is whole, as DeepSpeed's reader does."""
    return int(value) if value.is_integer() else value


def duration(seconds: float) -> str:
    """Write a time as `42 s`, `3 min 05 s` or `2 h 07 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def clock(seconds: float) -> str:
    """Write a time that runs as clocks do: `0:42`, `3:05`, `2:07:00`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def plural(count: int, noun: str) -> str:
    """Write `1 rank`, `2 ranks`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def gib(num_bytes: float) -> str:
    """Write an amount of memory in GiB, without the unit: `0.4`, `164.5`, `1134`."""
    size = num_bytes / (1 << 30)
    return f"{size:.1f}" if size < 1000 else f"{size:.0f}"


def brief(seconds: float) -> str:
    """Write a short time with two digits that matter: `64 ms`, `0.34 s`, `8.1 s`, `142 s`."""
    if seconds < 0.095:
        return f"{1000 * seconds:.2g} ms"
    if seconds >= 9.95:
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if seconds >= 0.95 else f"{seconds:.2f} s"


def count(number: float) -> str:
    """Write a large count: `8.03 B`, `125 M`, `512`."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.0f}"
