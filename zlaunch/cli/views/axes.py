"""Axes of a picture, with round numbers."""

import math
from collections.abc import Iterator
from typing import Final

from zlaunch.cli.views.drawing import Line, Shape, Text
from zlaunch.frozen import dataclass

TICK: Final = 4
MOST_TICKS: Final = 7
FEW_DECADES: Final = 200.0
"""Within this factor, a logarithmic axis also has the twos and the fives."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values from `low` to `high` to pixels from `start` to `end`; with `is_log`, their logarithms."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, self.low))
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Return round numbers within the axis."""
        if self.is_log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            if self.high / self.low <= FEW_DECADES:
                return [value for value in _one_two_five(first - 1, last) if self.low <= value <= self.high]
            every = 1 + max(0, last - first) // MOST_TICKS
            return [10.0**power for power in range(first, last + 1, every)]
        raw = (self.high - self.low) / min(MOST_TICKS, max(2.0, abs(self.end - self.start) / 40))
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(count * power for count in (1, 2, 5, 10) if count * power >= 0.999 * raw)
        first = math.ceil(self.low / step - 1e-9)
        return [count * step for count in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _one_two_five(first: int, last: int) -> Iterator[float]:
    for power in range(first, last + 1):
        for number in (1, 2, 5):
            yield float(f"{number}e{power}")


def across(axis: Axis, y: float, name: str) -> Iterator[Shape]:
    """Draw a horizontal axis at a height."""
    yield Line([(axis.start, y), (axis.end, y)])
    for value in axis.ticks:
        x = axis(value)
        yield Line([(x, y), (x, y + TICK)])
        yield Text(x, y + TICK + 13, f"{value:g}", "middle", size=11)
    yield Text((axis.start + axis.end) / 2, y + TICK + 30, name, "middle")


def up(axis: Axis, x: float, name: str) -> Iterator[Shape]:
    """Draw a vertical axis at the left of what it belongs to, with its name above."""
    yield Line([(x, axis.start), (x, axis.end)])
    for value in axis.ticks:
        y = axis(value)
        yield Line([(x - TICK, y), (x, y)])
        yield Text(x - TICK - 4, y + 4, f"{value:g}", "end", size=11)
    yield Text(x - 44, axis.end - 8, name, size=11)
