"""`zlaunch runs show`: everything about one run, and its memory compared with the forecast."""

from collections.abc import Iterator

from zlaunch import console
from zlaunch.cli.options import AsJson, LatestRun, RunsDir
from zlaunch.cli.runs.why import explained
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.run import members
from zlaunch.cli.views.run_facts import facts
from zlaunch.cli.views.step_time import profile_lines, step_time_lines
from zlaunch.diagnosis.stall import stall_lines
from zlaunch.resume.saved_by_run import saved_by_run
from zlaunch.runs.accuracy import accuracy_file, forecast_errors, read_accuracy
from zlaunch.runs.memory import MemoryComparison, compare_with_forecast
from zlaunch.runs.run import Run
from zlaunch.runs.store import open_run
from zlaunch.runs.what_ran import differences, unused
from zlaunch.units import signed_percent


def show(run: LatestRun = "latest", runs_dir: RunsDir = None, as_json: AsJson = False) -> None:
    """Show everything about a run, including its memory."""
    chosen = open_run(run, runs_dir)
    if as_json:
        console.data(to_json(run_members(chosen)))
        return
    memory = compare_with_forecast(chosen)
    console.data(*console.table(list(facts(chosen)), indent=""))
    console.data("", *explained(chosen), *_stall(chosen))
    if (time := chosen.step_time) is not None:
        console.data("", *step_time_lines(time))
    if profiled := list(profile_lines(chosen)):
        console.data("", *profiled)
    console.data("", *_memory_rows(memory))
    if chosen.forecast:
        console.data(*_accuracy())


def _stall(run: Run) -> Iterator[str]:
    if (stall := run.stall) is not None:
        yield from ["", *stall_lines(stall, None, console.width())]


def _memory_rows(memory: MemoryComparison) -> Iterator[str]:
    rows = [("memory of the largest rank, GiB", "predicted", "measured", "difference")]
    for pool in memory.pools:
        remark = pool.remark or "-"
        if pool.percent is not None:
            remark = signed_percent(pool.percent)
        rows.append((pool.name, _amount(pool.predicted), _amount(pool.measured), remark))
    yield from console.figures(rows) if memory.pools else ["memory was neither measured nor predicted"]
    for text in memory.remarks:
        yield from console.paragraph(text, "  ")


def _accuracy() -> Iterator[str]:
    if rows := forecast_errors(read_accuracy(accuracy_file())):
        yield from ["", "accuracy of all predictions on this machine", *console.table(rows)]


def _amount(num_bytes: int | None) -> str:
    if num_bytes is None:
        return "-"
    return f"{num_bytes / (1 << 30):.2f}"


def run_members(run: Run) -> dict[str, object]:
    """List the JSON members of everything about a run."""
    saved = saved_by_run(run)
    model = None if saved.model is None or saved.damage is not None else str(saved.model)
    checkpoint = None if saved.checkpoint is None else str(saved.checkpoint.checkpoint.folder)
    return {
        **members(run),
        "job": run.job,
        "environment": run.environment,
        "ending": run.ending or None,
        "memory": compare_with_forecast(run),
        "step_time": run.step_time,
        "program": run.program or None,
        "differences": differences(run),
        "ignored": unused(run),
        "saved": {"model": model, "checkpoint": checkpoint},
        "rank_files": {rank: _rank_files(run, rank) for rank in run.recorded_ranks},
    }


def _rank_files(run: Run, rank: int) -> dict[str, object]:
    return {
        "record": run.ranks.get(rank),
        "pulse": run.heartbeats.get(rank),
        "sample": run.samples.get(rank),
        "error": run.errors.get(rank),
    }
