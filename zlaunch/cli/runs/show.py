"""`zlaunch runs show`: everything about one run, and its memory compared with the forecast."""

import os
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict

from zlaunch import console
from zlaunch.cli.options import AsJson, LatestRun, RunsDir
from zlaunch.cli.runs.why import explained
from zlaunch.cli.views.run import long_moment, members, saved_rows, steps, to_json
from zlaunch.diagnosis.stall_text import stall_lines
from zlaunch.files import shown
from zlaunch.rundir.record import EnvironmentRecord, JobRecord
from zlaunch.runs.accuracy import accuracy_file, forecast_errors, read_accuracy
from zlaunch.runs.memory import MemoryComparison, compare_with_forecast
from zlaunch.runs.saved_by_run import resumed_of, saved_by_run
from zlaunch.runs.state import RunSummary, recorded_stall
from zlaunch.runs.store import find_run, load_run
from zlaunch.runs.what_ran import differences, engine_line, program_of
from zlaunch.units import plural

_PACKAGES = ("python", "torch", "deepspeed", "transformers", "accelerate")


def show(run: LatestRun = "latest", runs_dir: RunsDir = None, as_json: AsJson = False) -> None:
    """Show everything about a run, including its memory."""
    found = load_run(find_run(run, runs_dir))
    memory = compare_with_forecast(found)
    if as_json:
        console.data(to_json(_members(found, memory)))
        return
    console.data(*console.table(list(_facts(found)), indent=""))
    console.data("", *explained(found), *_stall(found), "", *_memory(memory), *_accuracy())


def _facts(run: RunSummary) -> Iterator[tuple[str, str]]:
    status = "" if run.exit_status is None else f", exit status {run.exit_status}"
    yield "run", os.path.relpath(run.files.root)
    yield "state", f"{run.state.value}{status}"
    yield "started", long_moment(run.started)
    yield from _asked(run.files.job)
    yield from _place(run)
    yield from _configuration(run)
    if (resumed := resumed_of(run.files)) is not None:
        yield "resumed", f"from {shown(resumed)}"
    if (engine := engine_line(run.files)) is not None:
        yield "engine", engine
    for one in differences(run.files):
        yield "differs", one
    yield from saved_rows(saved_by_run(run.files))
    yield "step", steps(run).replace("/", " of ").replace("-", "not reported")
    yield from _origin(run.files.environment)
    for trouble in run.files.troubles:
        yield "problem", trouble


def _asked(job: JobRecord) -> Iterator[tuple[str, str]]:
    if asked := job.get("asked"):
        yield "command", shlex.join(["zlaunch", *asked[1:]])
    if "script" in job:
        yield "script", shlex.join(job["script"])
    if "working_directory" in job:
        yield "directory", job["working_directory"]
    lineage = {"repeats": job.get("repeats"), "continues": job.get("continues"), "differs": job.get("why")}
    yield from ((label, text) for label, text in lineage.items() if text)


def _place(run: RunSummary) -> Iterator[tuple[str, str]]:
    job, gpus = run.files.job, run.files.environment.get("machine", {}).get("gpus", [])
    if slots := job.get("ranks"):
        hosts = Counter(slot.get("host") for slot in slots)
        where = ", ".join(f"{count} on {host}" for host, count in hosts.items())
        names = ", ".join(sorted({gpu.get("name", "") for gpu in gpus}))
        yield "ranks", f"{plural(len(slots), 'rank')} by {job.get('launcher')}: {where}"
        yield "device", f"{job.get('accelerator')}{f': {names}' if names else ''}"


def _configuration(run: RunSummary) -> Iterator[tuple[str, str]]:
    job = run.files.job
    if run.stage is not None:
        places = ", ".join(f"{part} on {place}" for part, place in run.offload.items())
        precision = job.get("precision") or "precision of the script"
        yield "ZeRO", f"stage {run.stage}, {places or 'nothing offloaded'}, {precision}"
    total, micro, pieces = job.get("train_batch_size"), job.get("micro_batch"), job.get("grad_accum")
    if total and micro and pieces:
        yield "batch", f"{total} = {micro} per rank x {pieces} accumulated x {run.world_size} ranks"


def _origin(environment: EnvironmentRecord) -> Iterator[tuple[str, str]]:
    packages, git = environment.get("packages", {}), environment.get("git") or {}
    versions = [f"{name} {packages[name]}" for name in _PACKAGES if packages.get(name)]
    if versions:
        yield "versions", ", ".join(versions)
    if commit := git.get("commit"):
        changed = git.get("changed")
        files = f", {plural(len(changed), 'file')} changed" if changed else ""
        yield "commit", f"{commit[:12]} on {git.get('branch')}{files}"


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
