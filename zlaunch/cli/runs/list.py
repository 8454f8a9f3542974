"""`zlaunch runs list`: list runs, newest first."""

import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.cli.options import AsJson, RunsDir
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.run import members, moment, steps, zero
from zlaunch.rundir.layout import RUNS
from zlaunch.runs.run import Run
from zlaunch.runs.store import all_runs, closed_runs, load_run
from zlaunch.units import clock, plural

HEADER = ("run", "when", "state", "ZeRO", "ranks", "step", "took")


def list_runs(
    runs_dir: RunsDir = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of runs.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, how they ended and why.

    The ZeRO column shows the stage, and where the optimizer and the parameters are offloaded to.
    """
    roots = all_runs(runs_dir)
    runs = [load_run(root) for root in roots[:limit]]
    if as_json:
        console.data(to_json([members(run) for run in runs]))
        return
    console.data(*lines_about(runs, time.time(), console.width()))
    if not roots:
        console.say(f"no runs in `{RUNS if runs_dir is None else runs_dir}`")
    elif len(roots) > limit:
        console.say(f"{len(roots) - limit} older; `--limit {len(roots)}` lists all")
    if closed := closed_runs(runs_dir):
        console.say(f"{plural(closed, 'run')} not listed: only their users may read them")


def lines_about(runs: Sequence[Run], now: float, width: int) -> Iterator[str]:
    """Write a row for each run, and below it the script and the cause of its end."""
    if not runs:
        return
    header, *rows = _aligned([HEADER, *(_run_row(run, now) for run in runs)], width)
    yield header
    for row, run in zip(rows, runs, strict=True):
        yield row
        parts = [Path(run.script or "").name, run.cause or ""]
        text = ": ".join(filter(None, parts))
        if below := "".join(character if character.isprintable() else " " for character in text):
            yield f"    {textwrap.shorten(below, width - 4, placeholder=' …')}"


def _aligned(rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Align columns; if they do not fit, cut the name, whose beginning is enough to find a run."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[0] = max(8, min(widths[0], width - sum(widths[1:]) - 2 * len(widths) + 2))
    for first, *rest in rows:
        cells = [first if len(first) <= widths[0] else f"{first[: widths[0] - 1]}…", *rest]
        yield "  ".join(f"{cell:<{columns}}" for cell, columns in zip(cells, widths, strict=True)).rstrip()


def _run_row(run: Run, now: float) -> tuple[str, ...]:
    return (
        run.id,
        moment(run.started, now),
        run.state.value,
        zero(run),
        "?" if run.world_size is None else str(run.world_size),
        steps(run),
        "-" if run.seconds is None else clock(min(run.seconds, 1e9)),
    )
