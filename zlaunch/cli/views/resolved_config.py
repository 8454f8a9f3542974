"""A ds_config with every "auto" filled in, as text or JSON."""

import json
from collections.abc import Iterator
from typing import Any

from zlaunch import console
from zlaunch.cli.views.dump import to_json
from zlaunch.config.resolve.autos import OpenReason
from zlaunch.config.resolve.lr_schedule import Schedule
from zlaunch.config.resolve.resolve import ResolvedValues
from zlaunch.dsconfig.text.document import dotted

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
        yield from _rates(schedule)


def _rates(schedule: Schedule) -> Iterator[str]:
    num_steps = schedule.num_steps
    peak, _ = schedule.peak()
    last = num_steps if schedule.is_share else num_steps - 1
    steps = {0, peak, *(last * quarter // 4 for quarter in (1, 2, 3)), last}
    rows = [("of the run" if schedule.is_share else "step", "learning rate", "")]
    for step in sorted(steps):
        where = f"{step / num_steps:.0%}" if schedule.is_share else str(step + 1)
        rows.append((where, f"{schedule.rate(step):.3g}", "peak" if step == peak else ""))
    yield from console.table(rows)


def as_json(resolved: ResolvedValues, batch: str, schedule: Schedule) -> Iterator[str]:
    """Write a JSON object with the same content."""
    members = {
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
    yield to_json(members)


def _points(schedule: Schedule) -> list[dict[str, Any]]:
    if schedule.curve is None:
        return []
    count = min(NUM_POINTS, schedule.num_steps)
    steps = sorted({round(part * (schedule.num_steps - 1) / max(1, count - 1)) for part in range(count)})
    return [{"step": step + 1, "rate": schedule.rate(step)} for step in steps]


REPORTS = {"text": as_text, "json": as_json}
