"""`zlaunch runs show`: everything about one run, and its memory compared with the forecast."""

from collections.abc import Iterator
from dataclasses import asdict

from zlaunch import console
from zlaunch.cli.options import AsJson, LatestRun, RunsDir
from zlaunch.cli.runs.why import explained
from zlaunch.cli.views.run import members, to_json
from zlaunch.cli.views.run_facts import facts
from zlaunch.diagnosis.stall_text import stall_lines
from zlaunch.resume.saved_by_run import saved_by_run
from zlaunch.runs.accuracy import accuracy_file, forecast_errors, read_accuracy
from zlaunch.runs.memory import MemoryComparison, compare_with_forecast
from zlaunch.runs.state import RunSummary, recorded_stall
from zlaunch.runs.store import find_run, load_run
from zlaunch.runs.what_ran import differences, program_of


def show(run: LatestRun = "latest", runs_dir: RunsDir = None, as_json: AsJson = False) -> None:
    """Show everything about a run, including its memory."""
    found = load_run(find_run(run, runs_dir))
    memory = compare_with_forecast(found)
    if as_json:
        console.data(to_json(_members(found, memory)))
        return
    console.data(*console.table(list(facts(found)), indent=""))
    console.data("", *explained(found), *_stall(found), "", *_memory(memory), *_accuracy())


def _stall(run: RunSummary) -> Iterator[str]:
    if (stall := recorded_stall(run.files.ending)) is not None:
        yield from ["", *stall_lines(stall, None, console.width())]


def _memory(memory: MemoryComparison) -> Iterator[str]:
    rows = [("memory of the largest rank, GiB", "predicted", "measured", "difference")]
    for pool in memory.pools:
        off = "" if pool.percent is None else f"{pool.percent:+.0f} %"
        rows.append((pool.name, _amount(pool.predicted), _amount(pool.measured), off or pool.remark or "-"))
    yield from console.figures(rows) if memory.pools else ["memory was neither measured nor predicted"]
    for remark in memory.remarks:
        yield from console.paragraph(remark, "  ")


def _accuracy() -> Iterator[str]:
    if rows := forecast_errors(read_accuracy(accuracy_file())):
        yield from ["", "accuracy of forecasts on this machine", *console.table(rows)]


def _amount(num_bytes: int | None) -> str:
    return "-" if num_bytes is None else f"{num_bytes / (1 << 30):.2f}"


def _members(run: RunSummary, memory: MemoryComparison) -> dict[str, object]:
    files, saved = run.files, saved_by_run(run.files)
    found = saved.checkpoint and saved.checkpoint.checkpoint.folder
    ranks = {*files.ranks, *files.heartbeats, *files.samples, *files.errors}
    return {
        **members(run),
        "job": files.job,
        "environment": files.environment,
        "ending": files.ending or None,
        "memory": asdict(memory),
        "program": program_of(files) or None,
        "differences": differences(files),
        "saved": {"model": saved.model and str(saved.model), "checkpoint": found and str(found)},
        "rank_files": {
            rank: {
                "record": files.ranks.get(rank),
                "pulse": files.heartbeats.get(rank),
                "sample": files.samples.get(rank),
                "error": files.errors.get(rank),
            }
            for rank in sorted(ranks)
        },
    }
