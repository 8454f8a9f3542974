"""`zlaunch runs list`: list runs, newest first."""

import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from zlaunch import console
from zlaunch.cli.options import AsJson, RunsDir
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.run import STATE_COLOURS, members, moment, steps, zero
from zlaunch.rundir.layout import RUNS
from zlaunch.runs.run import Run
from zlaunch.runs.store import all_runs, closed_runs, load_run
from zlaunch.units import clock, plural

if TYPE_CHECKING:
    from zlaunch.runs.step_time import Throughput

HEADER = ("run", "when", "state", "ZeRO", "ranks", "step", "took")


def list_runs(
    runs_dir: RunsDir = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of runs.")] = 20,
    sort: Annotated[
        Literal["started", "speed"], typer.Option(help="The newest first, or the fastest.")
    ] = "started",
    as_json: AsJson = False,
) -> None:
    """List runs, how they ended and why.

    The ZeRO column shows the stage, and where the optimizer and the parameters are offloaded to.
    """
    roots = all_runs(runs_dir)
    speeds: dict[str, Throughput] = {}
    if sort == "speed":
        speeds = _speeds(roots)
        roots = sorted(roots, key=lambda root: _pace(speeds.get(root.name)), reverse=True)
    runs = [load_run(root) for root in roots[:limit]]
    if as_json:
        console.data(to_json([{**members(run), **_throughput(speeds.get(run.id))} for run in runs]))
        return
    console.data(*lines_about(runs, time.time(), console.width(), speeds))
    if not roots:
        console.say(f"no runs in `{RUNS if runs_dir is None else runs_dir}`")
    elif len(roots) > limit:
        console.say(f"{len(roots) - limit} older; `--limit {len(roots)}` lists all")
    if closed := closed_runs(runs_dir):
        console.say(f"{plural(closed, 'run')} not listed: only their users may read them")


def _speeds(roots: Sequence[Path]) -> "dict[str, Throughput]":
    """Compute the throughput of each run that tells it, by its name."""
    times = {root.name: load_run(root).step_time for root in roots}
    return {name: found.throughput for name, found in times.items() if found is not None}


def _pace(throughput: "Throughput | None") -> tuple[float, float]:
    if throughput is None:
        return 0.0, 0.0
    return throughput.tokens_per_second or 0.0, throughput.samples_per_second or 0.0


def _throughput(throughput: "Throughput | None") -> dict[str, object]:
    if throughput is None:
        return {}
    return {"throughput": throughput}


def lines_about(
    runs: Sequence[Run], now: float, width: int, speeds: Mapping[str, "Throughput"] = MappingProxyType({})
) -> Iterator[str]:
    """Write a row for each run, and below it the script, its throughput and the cause of its end."""
    if not runs:
        return
    header, *rows = _aligned([HEADER, *(_run_row(run, now) for run in runs)], width)
    yield header
    for row, run in zip(rows, runs, strict=True):
        state = run.state.value
        yield row.replace(f"  {state}", f"  {console.painted(STATE_COLOURS[run.state], state)}", 1)
        parts = [Path(run.script or "").name, str(speeds.get(run.id, "")), run.cause or ""]
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
