"""`zlaunch runs list`: every run, the newest first."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zlaunch.cli.runs.options import AsJson, RunsDir

if TYPE_CHECKING:
    from zlaunch.record import RunRecord

HEADER = ("run", "when", "state", "ZeRO", "ranks", "step", "took")


def list_runs(
    runs_dir: RunsDir = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="How many at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List runs: when, how they ended and why, what ran where, how far it came.

    Under ZeRO stand the stage and where the optimizer and the parameters were offloaded to.
    """
    from zlaunch import console
    from zlaunch.cli.runs.summary import members, to_json
    from zlaunch.records import all_runs, look_at
    from zlaunch.rundir import RUNS

    roots = all_runs(runs_dir)
    records = [look_at(root) for root in roots[:limit]]
    if as_json:
        console.data(to_json([members(record) for record in records]))
        return
    for line in _lines(records):
        console.data(line)
    if not roots:
        console.say(f"no runs in `{RUNS if runs_dir is None else runs_dir}`")
    elif len(roots) > limit:
        console.say(f"{len(roots) - limit} older; `--limit {len(roots)}` lists all")


def _lines(records: "Sequence[RunRecord]") -> Iterator[str]:
    """Write a line about each run, and below it the script and why it ended."""
    import textwrap

    from zlaunch import console

    if not records:
        return
    rows = [HEADER, *(_row(record) for record in records)]
    width = console.width()
    over = max(map(len, console.table(rows, indent=""))) - width
    if over > 0:
        room = max(8, max(len(row[0]) for row in rows) - over)
        rows = [(_cut(row[0], room), *row[1:]) for row in rows]
    header, *lines = console.table(rows, indent="")
    yield header
    for line, record in zip(lines, records, strict=True):
        yield line
        parts = [Path(record.script).name if record.script else None, record.cause]
        if below := ": ".join(part for part in parts if part):
            yield textwrap.indent(textwrap.shorten(below, width - 4, placeholder=" …"), "    ")


def _cut(name: str, room: int) -> str:
    return name if len(name) <= room else f"{name[: room - 1]}…"


def _row(record: "RunRecord") -> tuple[str, ...]:
    import time

    from zlaunch.cli.runs.summary import clock, moment, steps, zero

    return (
        record.id,
        moment(record.started, time.time()),
        record.state.value,
        zero(record),
        "?" if record.world_size is None else str(record.world_size),
        steps(record),
        clock(record.seconds),
    )
