"""Show the time of a step by part, the throughput, and what limits the speed."""

import os
from collections.abc import Iterator
from typing import Final

from zlaunch import console
from zlaunch.diagnosis.render import loss_lines
from zlaunch.diagnosis.speed import part_name
from zlaunch.rundir.read import read_rank_records
from zlaunch.rundir.record import OperationRecord, OperationsRecord
from zlaunch.runs.profile import NSYS_REPORTS, nsys_reports, profile_note
from zlaunch.runs.run import Run
from zlaunch.runs.step_time import StepTime
from zlaunch.units import brief, plural, rate, steps_text

MOST_OPERATIONS: Final = 10
NAME_WIDTH: Final = 52
NAME_END: Final = 16
"""How much of the end of a long name is shown."""
LEAST_SHOWN: Final = 0.005
"""Share of a step below which a part has no row of its own."""


def step_time_lines(time: StepTime) -> Iterator[str]:
    """Write a table of the parts of a step, the throughput, and each loss."""
    title = f"time of a step, mean of {plural(len(time.ranks), 'rank')}"
    if time.on_gpu:
        title = f"{title}, on the GPU"
    rows = [(title, "time", "share")]
    for part, seconds in time.parts.items():
        if seconds >= LEAST_SHOWN * time.seconds:
            rows.append((part_name(part), brief(seconds), f"{seconds / time.seconds:.0%}"))
    if time.parts:
        yield from console.figures(rows)
        took = f"  {brief(time.seconds)} in all"
    else:
        took = f"time of a step: {brief(time.seconds)}; too few were measured on the GPU to tell its parts"
    if time.predicted is not None:
        yield f"{took}; predicted: {time.predicted}"
    elif not time.parts:
        yield took
    if text := str(time.throughput):
        yield f"  {text}"
    for loss in time.losses:
        yield from loss_lines(loss, console.width())


def profile_lines(run: Run) -> Iterator[str]:
    """Show the operations of each profiled rank, what the profile cost, and where its trace is."""
    if (why := profile_note(run)) is not None:
        yield from console.paragraph(why)
    if reports := nsys_reports(run):
        files = os.path.relpath(reports[0])
        if len(reports) > 1:
            files = f"{plural(len(reports), 'file')} {os.path.relpath(run.paths.ranks / NSYS_REPORTS)}"
        yield from console.paragraph(f"profile: {files}, for `nsys-ui` or `nsys stats`")
    records = read_rank_records(run.paths, OperationsRecord)
    for rank, record in records.items():
        clock = "on the GPU" if record.get("on_gpu") else "on the CPU"
        steps = steps_text(record.get("first", 0), record.get("last", 0))
        rows = [_operation_row(row) for row in record.get("operations", [])[:MOST_OPERATIONS]]
        yield from console.figures([(f"{steps} of rank {rank}, {clock}", "calls/step", "time/step"), *rows])
        cost = f"a profiled step took {brief(record.get('seconds', 0))}"
        if not record.get("whole_steps", 1):
            cost = f"a part of a step took {brief(record.get('seconds', 0))}"
        if usual := record.get("usual_seconds"):
            cost += f", the one before {brief(usual)}"
        cost += f"; writing the trace took {brief(record.get('export_seconds', 0))}"
        trace = os.path.relpath(run.paths.rank_trace(rank))
        for text in (cost, f"trace: {trace}, for `ui.perfetto.dev` or `chrome://tracing`"):
            yield from console.paragraph(text, "  ")


def _operation_row(row: OperationRecord) -> tuple[str, str, str]:
    name = "".join(character if character.isprintable() else " " for character in row.get("name", "?"))
    if len(name) > NAME_WIDTH:  # operations that begin alike may end in `_backward`
        name = f"{name[: NAME_WIDTH - NAME_END - 1]}…{name[-NAME_END:]}"
    return name, rate(row.get("calls", 0)), brief(row.get("seconds", 0))
