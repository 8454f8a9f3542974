"""Plot a curve as plain text."""

from collections.abc import Callable, Sequence

MARK = "*"


def plot(
    curve: Callable[[int], float], num_steps: int, ends: tuple[str, str], size: tuple[int, int]
) -> list[str]:
    """Plot a curve from 0 over its steps, in columns by rows, with `ends` as labels of the x axis."""
    columns, rows = size
    spans = [_span(curve, *_steps(column, columns, num_steps)) for column in range(columns)]
    top = max((high for _, high in spans), default=0.0)
    levels = _joined([(_level(low, top, rows), _level(high, top, rows)) for low, high in spans])
    labels = {rows - 1: f"{top:.3g}", 0: "0"}
    margin = max(map(len, labels.values()))
    lines = []
    for row in reversed(range(rows)):
        marks = "".join(MARK if low <= row <= high else " " for low, high in levels)
        lines.append(f"{labels.get(row, ''):>{margin}} |{marks}".rstrip())
    start, end = ends
    return [
        *lines,
        f"{'':>{margin}} +{'-' * columns}",
        f"{'':>{margin}}  {start}{end:>{columns - len(start)}}",
    ]


def _steps(column: int, columns: int, num_steps: int) -> tuple[int, int]:
    """Find the steps of a column: at least one, and each step in some column."""
    first = column * num_steps // columns
    return first, max(first + 1, (column + 1) * num_steps // columns)


def _span(curve: Callable[[int], float], first: int, end: int) -> tuple[float, float]:
    """Find the lowest and highest value in a column from at most about 50 samples."""
    stride = max(1, (end - first) // 50)
    values = [max(0.0, curve(step)) for step in (*range(first, end, stride), end - 1)]
    return min(values), max(values)


def _level(value: float, top: float, rows: int) -> int:
    return 0 if top <= 0 else round(value / top * (rows - 1))


def _joined(levels: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Stretch each column to meet the one before it."""
    joined: list[tuple[int, int]] = []
    before = levels[0] if levels else (0, 0)
    for low, high in levels:
        joined.append((min(low, before[1] + 1), max(high, before[0] - 1)))
        before = (low, high)
    return joined
