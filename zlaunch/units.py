"""Reading numbers, and formatting amounts for people."""

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fractions import Fraction

_GIB: Final = 1 << 30
_KIB: Final = 1 << 10
_MIB: Final = 1 << 20
_TOO_LARGE: Final[int] = 1 << 63


def whole(value: object) -> int | None:
    """Return an integer; None for anything else, such as "auto" or true."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


def narrowed(value: "float | Fraction") -> int | float:
    """Convert a number without a fraction to an integer, unless it is so large that DeepSpeed does not."""
    if -_TOO_LARGE < value < _TOO_LARGE and value == int(value):
        return int(value)
    return float(value)


@cache
def numbers_of(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version; no numbers for a text without any."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def duration(seconds: float) -> str:
    """Format a time as `42 s`, `3 min 05 s` or `2 h 07 min`."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02} s"
    return f"{total // 3600} h {total % 3600 // 60:02} min"


def largest_piece(number: int) -> int | None:
    """Return the largest proper divisor; None for 1."""
    return next((divisor for divisor in range(number // 2, 0, -1) if number % divisor == 0), None)


def clock(seconds: float) -> str:
    """Format a running time like a clock: `0:42`, `3:05`, `2:07:00`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minute:02}:{second:02}"
    return f"{minute}:{second:02}"


def plural(count: "int | Fraction", noun: str) -> str:
    """Format a count: `1 rank`, `2 ranks`."""
    if count == 1:
        return f"{count} {noun}"
    return f"{count} {noun}s"


def rate(value: float) -> str:
    """Write a rate with three digits or more: `0.82`, `13.5`, `8,623`."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def steps_text(first: int, last: int) -> str:
    """Write a range of steps: `step 3`, `steps 3 to 5`."""
    if first == last:
        return f"step {first}"
    return f"steps {first} to {last}"


def listed(words: Sequence[str], most: int) -> str:
    """List words; of many, the first ones and a count of the rest."""
    text = ", ".join(words[:most])
    return text if len(words) <= most else f"{text} and {len(words) - most} more"


def gib(num_bytes: float) -> str:
    """Format bytes in GiB without the unit: `0.4`, `164.5`, `1134`."""
    size = num_bytes / _GIB
    if size < 1000:
        return f"{size:.1f}"
    return f"{size:.0f}"


def in_gib(num_bytes: float) -> str:
    """Format bytes for a table in GiB, small amounts in MiB: `0.42`, `35 MiB`, `0`."""
    if num_bytes >= _GIB - _MIB:
        return gib(num_bytes)
    if num_bytes >= _GIB / 10:
        return f"{num_bytes / _GIB:.2f}"
    if 0 < num_bytes < _MIB / 2:
        return "<1 MiB"
    if num_bytes <= 0:
        return "0"
    return f"{num_bytes / _MIB:.0f} MiB"


def memory(num_bytes: float) -> str:
    """Format bytes with a unit: `164.5 GiB`, `35 MiB`, `0 GiB`."""
    text = in_gib(num_bytes)
    if text.endswith("MiB"):
        return text
    return f"{text} GiB"


def mib(num_bytes: float) -> str:
    """Format bytes as `0.1 MiB`, large amounts as `1.5 GiB`."""
    return f"{gib(num_bytes)} GiB" if num_bytes >= _GIB else f"{num_bytes / _MIB:.1f} MiB"


def decimal(amount: float, unit: str) -> str:
    """Format bytes or operations with a decimal prefix: `3.2 MB`, `1.1 PFLOP`."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if amount >= size:
            return f"{amount / size:.1f} {letter}{unit}"
    return f"{amount / 1e3:.1f} k{unit}"


def signed_percent(value: float, digits: int = 0) -> str:
    """Format a difference in percent with its sign: `+3 %`, `-0.4 %`, `0 %`."""
    text = f"{value:+.{digits}f}"
    if not float(text):
        text = text[1:]
    return f"{text} %"


def brief(seconds: float) -> str:
    """Format a short time with two significant digits: `64 ms`, `0.34 s`, `8.1 s`, `142 s`."""
    return _in_unit_of(seconds, seconds)


def brief_range(least: float, most: float) -> str:
    """Format a range of short times in one unit, that of its end: `0.035 ms to 0.12 ms`, `8.1 s to 22 s`.

    If both are written alike, it is one time.
    """
    return " to ".join(dict.fromkeys(_in_unit_of(most, seconds) for seconds in (least, most)))


def _in_unit_of(longest: float, seconds: float) -> str:
    if 0 < longest < 0.000095:
        return f"{1_000_000 * seconds:.2g} µs"
    if longest < 0.095:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 0.095:
        return f"{seconds:.2g} s"
    if seconds < 0.95:
        return f"{seconds:.2f} s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s"


def measured_time(seconds: float) -> str:
    """Format a short time that was measured, with three significant digits: `812 ms`, `1.27 s`."""
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s"


def count(number: float) -> str:
    """Format a large count: `8.03 B`, `125 M`, `512`."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.0f}"


def size(num_bytes: float) -> str:
    """Format bytes with their unit: `120 B`, `12 KiB`, `35 MiB`, `5.2 GiB`."""
    if num_bytes >= _GIB - _MIB:
        return f"{gib(num_bytes)} GiB"
    small, divisor = next((unit for unit in (("MiB", _MIB), ("KiB", _KIB)) if num_bytes >= unit[1]), ("B", 1))
    return f"{num_bytes / divisor:.0f} {small}"
