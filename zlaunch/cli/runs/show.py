"""`zlaunch runs show`: show one run, and its memory compared with the forecast."""

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from zlaunch import console
from zlaunch.cli.runs.options import AsJson, LatestRun, RunsDir
from zlaunch.cli.runs.why import explained
from zlaunch.cli.views.run import long_moment, members, steps, to_json
from zlaunch.diagnosis.stall import stall_lines
from zlaunch.rundir.record import RunFiles, RunRecord, section, text
from zlaunch.runs.accuracy import default_accuracy_file, forecast_errors, read_accuracy
from zlaunch.runs.memory import MemoryComparison, compare_with_forecast
from zlaunch.runs.store import find_run, load_run
from zlaunch.runs.verdict import stall_of
from zlaunch.units import plural


def show(run: LatestRun = "latest", runs_dir: RunsDir = None, as_json: AsJson = False) -> None:
    """Show everything about a run, including its memory."""
    record = load_run(find_run(run, runs_dir))
    memory = compare_with_forecast(record)
    if as_json:
        console.data(to_json(_members(record, memory)))
        return
    for line in console.table(list(_facts(record)), indent=""):
        console.data(line)
    for line in ["", *explained(record), *_stall(record), "", *_memory(memory), *_experience()]:
        console.data(line)


def _facts(record: RunRecord) -> Iterator[tuple[str, str]]:
    found = record.found
    status = "" if record.exit_status is None else f", exit status {record.exit_status}"
    yield "run", os.path.relpath(found.root)
    yield "state", f"{record.state.value}{status}"
    yield "started", long_moment(record.started)
    yield from _asked(found.job)
    yield from _place(record)
    yield from _configuration(record)
    yield "step", steps(record).replace("/", " of ").replace("-", "none was told of")
    yield from _origin(found)
    for trouble in found.troubles:
        yield "trouble", trouble


def _asked(job: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if isinstance(asked := job.get("asked"), list) and asked:
        yield "asked", shlex.join(["zlaunch", *map(str, asked[1:])])
    if isinstance(script := job.get("script"), list):
        yield "script", shlex.join(map(str, script))
    if "working_directory" in job:
        yield "in", str(job["working_directory"])
    for label, name in (("repeats", "repeats"), ("continues", "continues"), ("differs", "why")):
        if job.get(name):
            yield label, str(job[name])


def _place(record: RunRecord) -> Iterator[tuple[str, str]]:
    job = record.found.job
    slots = [slot for slot in job.get("ranks") or [] if isinstance(slot, Mapping)]
    hosts = {str(slot.get("host")): 0 for slot in slots}
    for slot in slots:
        hosts[str(slot.get("host"))] += 1
    where = ", ".join(f"{count} on {host}" for host, count in hosts.items())
    if slots:
        yield "ranks", f"{plural(len(slots), 'rank')} by {job.get('launcher')}: {where}"
        yield "device", f"{job.get('accelerator')}{_gpu_names(record.found)}"


def _gpu_names(found: RunFiles) -> str:
    gpus = section(found.environment, "machine").get("gpus")
    names = {str(gpu.get("name")) for gpu in gpus or [] if isinstance(gpu, Mapping)}
    return f": {', '.join(sorted(names))}" if names else ""


def _configuration(record: RunRecord) -> Iterator[tuple[str, str]]:
    job = record.found.job
    if record.stage is not None:
        places = [f"{part} on {place}" for part, place in record.offload.items()]
        yield (
            "ZeRO",
            f"stage {record.stage}, {', '.join(places) or 'nothing offloaded'}, {job.get('precision')}",
        )
    sizes = [job.get(name) for name in ("train_batch_size", "micro_batch", "grad_accum")]
    if all(sizes):
        yield (
            "batch",
            f"{sizes[0]} = {sizes[1]} per rank x {sizes[2]} accumulated x {record.world_size} ranks",
        )


def _origin(found: RunFiles) -> Iterator[tuple[str, str]]:
    """List the versions and the commit of a run."""
    packages = section(found.environment, "packages")
    versions = [f"{name} {packages[name]}" for name in _TOLD if packages.get(name)]
    if versions:
        yield "versions", ", ".join(versions)
    git = section(found.environment, "git")
    if commit := text(git, "commit"):
        changed = git.get("changed")
        files = f", {plural(len(changed), 'file')} changed" if isinstance(changed, list) and changed else ""
        yield "commit", f"{commit[:12]} on {git.get('branch')}{files}"


_TOLD = ("python", "torch", "deepspeed", "transformers", "accelerate")


def _stall(record: RunRecord) -> Iterator[str]:
    """Show where the ranks stalled."""
    if (stall := stall_of(record.found)) is not None:
        yield from ["", *stall_lines(stall, None, console.width(), is_over=True)]


def _memory(memory: MemoryComparison) -> Iterator[str]:
    rows = [("memory of the fullest rank, GiB", "predicted", "measured", "difference")]
    for pool in memory.pools:
        off = "" if pool.percent is None else f"{pool.percent:+.0f} %"
        rows.append((pool.name, _amount(pool.predicted), _amount(pool.measured), off or pool.remark or "-"))
    yield from console.figures(rows) if memory.pools else ["no memory was measured, and none predicted"]
    for remark in memory.remarks:
        yield from console.paragraph(remark, "  ")


def _experience() -> Iterator[str]:
    """Show the errors of past forecasts on this machine."""
    if rows := forecast_errors(read_accuracy(default_accuracy_file())):
        yield from ["", "forecasts on this machine so far", *console.table(rows)]


def _amount(num_bytes: int | None) -> str:
    return "-" if num_bytes is None else f"{num_bytes / (1 << 30):.2f}"


def _members(record: RunRecord, memory: MemoryComparison) -> dict[str, Any]:
    found = record.found
    return {
        **members(record),
        "job": found.job,
        "environment": found.environment,
        "ending": found.ending or None,
        "memory": {
            "pools": [asdict(pool) for pool in memory.pools],
            "remarks": list(memory.remarks),
        },
        "rank_files": {
            rank: {
                name: files.get(rank)
                for name, files in {
                    "record": found.ranks,
                    "pulse": found.pulses,
                    "sample": found.samples,
                    "error": found.errors,
                }.items()
            }
            for rank in sorted({*found.ranks, *found.pulses, *found.samples, *found.errors})
        },
    }
