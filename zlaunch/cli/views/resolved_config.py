"""A ds_config with every "auto" filled in, as text or JSON."""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from zlaunch import console
from zlaunch.config.resolve.autos import OpenReason
from zlaunch.config.resolve.lr_schedule import Schedule
from zlaunch.config.resolve.resolve import ResolvedValues
from zlaunch.dsconfig.text.document import dotted

PLOT_COLUMNS, PLOT_ROWS, MARK = 60, 10, "*"
NUM_POINTS = 100


def as_text(resolved: ResolvedValues, batch: str, schedule: Schedule) -> Iterator[str]:
    """Write the values with their sources, then the batch, what stays open, and the learning rate."""
    yield 'filled in for "auto" and missing keys' if resolved.filled else "nothing is filled in"
    rows = [
        (f"{dotted(path)} = {json.dumps(leaf.value)}", str(leaf.source))
        for path, leaf in resolved.filled.items()
    ]
    yield from console.notes(rows)
    yield f"\nbatch\n  {batch}"
    if resolved.left:
        yield "\nstill open"
        yield from console.notes(list(resolved.left.items()))
        if OpenReason.MODEL in resolved.left.values():
            yield "  `--model DIR` fills in what depends on the model"
    yield f"\nlearning rate: {schedule.name} ({schedule.source})"
    for remark in schedule.remarks:
        yield from console.notes([("", remark)], indent="")
    if schedule.curve is not None:
        yield from _drawn(schedule)


def _drawn(schedule: Schedule) -> Iterator[str]:
    last = schedule.num_steps - (0 if schedule.is_share else 1)
    step, peak = schedule.peak()
    where = f"{step / schedule.num_steps:.0%} of the run" if schedule.is_share else f"step {step + 1}"
    yield (
        f"  start {schedule.rate(0):.3g}, peak {peak:.3g} at {where}, "
        f"{'end' if schedule.is_whole or schedule.is_share else 'then'} {schedule.rate(last):.3g}"
    )
    ends = ("0%", "100% of the run") if schedule.is_share else ("step 1", f"step {schedule.num_steps}")
    for line in plot(schedule.rate, schedule.num_steps, ends, (PLOT_COLUMNS, PLOT_ROWS)):
        yield f"  {line}"


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


def as_json(resolved: ResolvedValues, batch: str, schedule: Schedule) -> Iterator[str]:
    """Write a JSON object with the same content."""
    told = {
        "config": resolved.values.config(),
        "filled": {
            dotted(path): {"value": leaf.value, "source": str(leaf.source)}
            for path, leaf in resolved.filled.items()
        },
        "open": dict(resolved.left),
        "batch": batch,
        "learning_rate": {
            "schedule": schedule.name,
            "source": schedule.source,
            "remarks": list(schedule.remarks),
            "total_steps": schedule.num_steps if schedule.is_whole else None,
            "points": _points(schedule),
        },
    }
    yield json.dumps(told, indent=2)


def _points(schedule: Schedule) -> list[dict[str, Any]]:
    if schedule.curve is None:
        return []
    count = min(NUM_POINTS, schedule.num_steps)
    steps = sorted({round(part * (schedule.num_steps - 1) / max(1, count - 1)) for part in range(count)})
    return [{"step": step + 1, "rate": schedule.rate(step)} for step in steps]


REPORTS = {"text": as_text, "json": as_json}
