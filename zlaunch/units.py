"""How amounts are read, and how they are written for people."""

from typing import Any, Final

_GIB: Final = 1 << 30
_MIB: Final = 1 << 20


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


def largest_piece(number: int) -> int | None:
    """Find the largest smaller number that it can be cut into; None for 1."""
    return next((piece for piece in range(number // 2, 0, -1) if number % piece == 0), None)


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
    size = num_bytes / _GIB
    return f"{size:.1f}" if size < 1000 else f"{size:.0f}"


def in_gib(num_bytes: float) -> str:
    """Write an amount for a table in GiB; what would read 0.0 there is in MiB: `0.42`, `35 MiB`, `0`."""
    if num_bytes >= _GIB - _MIB:
        return gib(num_bytes)
    if num_bytes >= _GIB / 10:
        return f"{num_bytes / _GIB:.2f}"
    if 0 < num_bytes < _MIB / 2:
        return "<1 MiB"
    return f"{num_bytes / _MIB:.0f} MiB" if num_bytes > 0 else "0"


def memory(num_bytes: float) -> str:
    """Write an amount of memory with its unit: `164.5 GiB`, `35 MiB`, `0 GiB`."""
    text = in_gib(num_bytes)
    return text if text.endswith("MiB") else f"{text} GiB"


def decimal(amount: float, unit: str) -> str:
    """Write bytes or operations with a digit after the point and a decimal prefix: `3.2 MB`, `1.1 PFLOP`."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if amount >= size:
            return f"{amount / size:.1f} {letter}{unit}"
    return f"{amount / 1e3:.1f} k{unit}"


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
