"""Find a job that is still running and saves to the same directory."""

import os
from collections.abc import Iterator
from pathlib import Path

from zlaunch.errors import Finding, Severity
from zlaunch.files import shown
from zlaunch.launch.plan import LaunchPlan
from zlaunch.rundir.layout import RUNS, RunDir
from zlaunch.rundir.owner import owner_process
from zlaunch.rundir.read import read_record
from zlaunch.rundir.record import JobRecord


def output_directory(plan: LaunchPlan) -> Path | None:
    """Return where a job saves checkpoints or its model; None if only its script knows."""
    if plan.saves is not None:
        return plan.saves.directory
    return plan.training.save_directory


def check_shared_output(plan: LaunchPlan) -> Iterator[Finding]:
    """Name the run that saves to the directory of a job; among those beside it, and beside the directory."""
    directory = output_directory(plan)
    if directory is None:
        return
    place = directory.resolve()
    folders = {plan.layout.root.parent, RUNS.absolute(), directory.parent / RUNS}
    for file in (file for folder in sorted(folders) for file in sorted(folder.glob("*/job.json"))):
        if file.parent == plan.layout.root or RunDir(file.parent).ending.exists():
            continue
        job = read_record(file, JobRecord)
        saves_to, process = job.get("saves_to"), owner_process(job)
        if saves_to is None or Path(saves_to).resolve() != place or process is None:
            continue
        if process.pid != os.getpid():
            yield Finding(
                "shared-output",
                f"the run {file.parent.name} is still running, and saves to {shown(directory)} too: each "
                "of the two overwrites what the other has saved",
                "use another directory, or start this job when that one has ended",
                severity=Severity.ADVICE,
            )
