"""A run once more: go where it was started, see what has changed since, look into it as into a first one."""

import os
import sys
from dataclasses import replace
from pathlib import Path

from zlaunch import __version__, rundir
from zlaunch.errors import Unavailable
from zlaunch.layout import RunLayout
from zlaunch.prepare import Prepared, prepare
from zlaunch.probe import package_versions
from zlaunch.record import Found
from zlaunch.repeat import Change, Past, changes, circumstance, inherited, plan_again, spec_of


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


def what_changed(past: Past, prepared: Prepared) -> list[Change]:
    """Compare what the run depended on with what is here."""
    then = circumstance(past)
    now = replace(
        then,
        script_sha256=rundir.file_sha256(prepared.inputs.job.script),
        git=rundir.git_state(),
        packages={**package_versions(rundir.PACKAGES), "zlaunch": __version__},
        python=sys.executable,
        gpus=[gpu.name for gpu in prepared.inputs.machine.gpus],
    )
    return changes(then, now)


def prepare_again(found: Found, run_dir: Path | None) -> Prepared:
    """Look into a run once more, for a directory beside the old one if none was asked for."""
    past = past_of(found)
    prepared = prepare(spec_of(past, RunLayout(found.root)), run_dir, found.root.parent)
    return replace(prepared, decide=lambda inputs: plan_again(past, inputs.layout, inputs.port))
