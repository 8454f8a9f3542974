"""The facts about one run, in rows of a label and a text."""

import os
from collections import Counter
from collections.abc import Iterator

from zlaunch import console
from zlaunch.cli.views.run import long_moment, saved_rows, steps, tracker_rows
from zlaunch.files import shown
from zlaunch.resume.saved_by_run import resumed_of, saved_by_run
from zlaunch.rundir.record import EnvironmentRecord, JobRecord
from zlaunch.runs.run import Run
from zlaunch.runs.what_ran import differences, engine_line, unused
from zlaunch.secrets import hide_arguments
from zlaunch.units import plural

_PACKAGES = ("python", "torch", "deepspeed", "transformers", "accelerate")


def facts(run: Run) -> Iterator[tuple[str, str]]:
    """List label and text of what is known of a run."""
    yield "run", os.path.relpath(run.root)
    if run.exit_status is None:
        yield "state", run.state.value
    else:
        yield "state", f"{run.state.value}, exit status {run.exit_status}"
    yield "started", long_moment(run.started)
    yield from _asked(run.job)
    yield from _place(run)
    yield from _configuration(run)
    if (resumed := resumed_of(run)) is not None:
        yield "resumed", f"from {shown(resumed)}"
    if (engine := engine_line(run)) is not None:
        yield "engine", engine
    for difference in differences(run):
        yield "differs", difference
    for message in unused(run):
        yield "ignored", message
    yield from saved_rows(saved_by_run(run))
    yield from tracker_rows(run.program.get("trackers", {}))
    yield "step", steps(run).replace("/", " of ").replace("-", "not reported")
    yield from _origin(run.environment)
    for trouble in run.troubles:
        yield "problem", trouble


def _asked(job: JobRecord) -> Iterator[tuple[str, str]]:
    if asked := job.get("asked"):
        yield "command", console.shell_line(hide_arguments(["zlaunch", *asked[1:]]))
    if "script" in job:
        yield "script", console.shell_line(hide_arguments(job["script"]))
    if "working_directory" in job:
        yield "directory", job["working_directory"]
    for label, text in (
        ("repeats", job.get("repeats")),
        ("continues", job.get("continues")),
        ("differs", job.get("why")),
    ):
        if text:
            yield label, text


def _place(run: Run) -> Iterator[tuple[str, str]]:
    job, gpus = run.job, run.environment.get("machine", {}).get("gpus", [])
    if slots := job.get("ranks"):
        hosts = Counter(slot.get("host") for slot in slots)
        where = ", ".join(f"{count} on {host}" for host, count in hosts.items())
        yield "ranks", f"{plural(len(slots), 'rank')} by {job.get('launcher')}: {where}"
        device = str(job.get("accelerator"))
        if names := ", ".join(sorted({gpu.get("name", "") for gpu in gpus})):
            device += f": {names}"
        yield "device", device


def _configuration(run: Run) -> Iterator[tuple[str, str]]:
    job = run.job
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
        text = f"{commit[:12]} on {git.get('branch')}"
        if changed := git.get("changed"):
            text += f", {plural(len(changed), 'file')} changed"
        yield "commit", text
