"""Plot a curve as plain text."""

from collections.abc import Callable
from itertools import pairwise

MARK = "*"


def plot(
    curve: Callable[[int], float], num_steps: int, ends: tuple[str, str], size: tuple[int, int]
) -> list[str]:
    """Plot a curve from 0 over its steps, in columns by rows, with `ends` as labels of the x axis."""
    columns, rows = size
    bounds = [column * num_steps // columns for column in range(columns + 1)]
    spans = [_span(curve, first, max(first + 1, end)) for first, end in pairwise(bounds)]
    top = max(high for _, high in spans)
    levels = [tuple(round(value / (top or 1.0) * (rows - 1)) for value in span) for span in spans]
    marks: list[range] = []
    for (low, high), (before_low, before_high) in zip(levels, [levels[0], *levels], strict=False):
        marks.append(range(min(low, before_high + 1), max(high, before_low - 1) + 1))  # meets the one before
    labels = {rows - 1: f"{top:.3g}", 0: "0"}
    margin = max(map(len, labels.values()))
    lines = [
        f"{labels.get(row, ''):>{margin}} |{''.join(MARK if row in one else ' ' for one in marks)}".rstrip()
        for row in reversed(range(rows))
    ]
    start, end = ends
    axis = f"{'':>{margin}} +{'-' * columns}"
    return [*lines, axis, f"{'':>{margin}}  {start}{end:>{columns - len(start)}}"]


def _span(curve: Callable[[int], float], first: int, end: int) -> tuple[float, float]:
    """Find the lowest and highest value in a column from at most about 50 of its steps."""
    stride = max(1, (end - first) // 50)
    values = [max(0.0, curve(step)) for step in (*range(first, end, stride), end - 1)]
    return min(values), max(values)
