"""A run once more: go where it was started, see what has changed since, write a directory for it."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from zlaunch import __version__, rundir
from zlaunch.errors import Unavailable
from zlaunch.hosts import free_port, machines_of
from zlaunch.layout import RunLayout
from zlaunch.machine import Machine, weakest
from zlaunch.plan import LaunchPlan
from zlaunch.probe import package_versions, probe_machine
from zlaunch.record import Found, Lineage, name_of
from zlaunch.repeat import Change, Past, changes, circumstance, inherited, plan_again


def past_of(found: Found) -> Past:
    """Take from what was read of a run how it was started; its directory may have been moved since."""
    recorded = found.job.get("run_directory")
    root = Path(recorded) if isinstance(recorded, str) else found.root
    return Past(root, found.job, found.config, found.provenance, found.environment)


def go_back(past: Past) -> list[Change]:
    """Enter the directory a run was started in, and set the variables it inherited as they were.

    Returns the variables that differed; those that were not set then are taken away.
    """
    directory = str(past.job.get("working_directory", ""))
    try:
        os.chdir(directory)
    except OSError as error:
        raise Unavailable(f"the run was started in `{directory}`: {error.strerror}") from None
    if "inherited" not in past.job:
        return []
    then, now = dict(past.job["inherited"]), inherited(os.environ)
    differing = [name for name in sorted({*then, *now}) if then.get(name) != now.get(name)]
    for name in differing:
        os.environ.pop(name, None)
        os.environ.update({name: then[name]} if name in then else {})
    return [Change(name, then.get(name, "not set"), now.get(name, "not set")) for name in differing]


def what_changed(past: Past, plan: LaunchPlan, machine: Machine) -> list[Change]:
    """Compare what the run depended on with what is here."""
    then = circumstance(past)
    now = replace(
        then,
        script_sha256=rundir.file_sha256(Path(plan.script[0])),
        git=rundir.git_state(),
        packages={**package_versions(rundir.PACKAGES), "zlaunch": __version__},
        python=sys.executable,
        gpus=[gpu.name for gpu in machine.gpus],
    )
    return changes(then, now)


def plan_for(past: Past, run_dir: Path | None, beside: Path) -> LaunchPlan:
    """Plan the run again for the next free directory: the one that was asked for, or beside the old one."""
    if run_dir is not None:
        rundir.check_writable(run_dir, "--run-dir")
        rundir.check_unused(run_dir)
    return plan_again(past, next(_layouts(past, run_dir, beside)), free_port())


def machine_of(plan: LaunchPlan) -> Machine:
    """Look at the machines of a job once more."""
    here = probe_machine(os.environ)
    if not plan.topology.over_ssh:
        return here
    return weakest(list(machines_of([host.name for host in plan.topology.hosts], here).values()))


def reserve_again(found: Found, run_dir: Path | None, machine: Machine, asked: Sequence[str]) -> LaunchPlan:
    """Write the run directory; if another run takes the name first, plan for the next one."""
    past = past_of(found)
    for layout in _layouts(past, run_dir, found.root.parent):
        plan = plan_again(past, layout, free_port())
        try:
            rundir.claim(plan)
        except FileExistsError:
            continue
        rundir.fill(plan, machine, asked, Lineage(repeats=found.root.name))
        if found.forecast:
            rundir.write_new(layout.forecast, json.dumps(found.forecast, indent=2) + "\n")
        return plan
    raise Unavailable("another run took the run directory", "name another with `--run-dir DIR`")


def _layouts(past: Past, run_dir: Path | None, beside: Path) -> Iterator[RunLayout]:
    name = name_of(past.job)
    if name is None:
        raise Unavailable(f"the record of {past.root} names no script")
    return rundir.candidates(run_dir, name, beside)
