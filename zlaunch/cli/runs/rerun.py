"""`zlaunch runs rerun`: repeat a run exactly."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zlaunch.cli.runs.options import AsJson, Run, RunsDir

if TYPE_CHECKING:
    from zlaunch.errors import Finding
    from zlaunch.job.spec import JobSpec
    from zlaunch.launch.rerun import Change
    from zlaunch.runs.state import RunSummary


def rerun(
    run: Run,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Run directory (default: beside the old one)."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Start even if something changed or a resource is short.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show everything; write and start nothing.")
    ] = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Repeat a run exactly, in a new run directory.

    With --json, the last line of the output is an object about the new run.
    """
    from zlaunch.cli.start import Examined, examine, see, show
    from zlaunch.errors import Refused, WrongUsage
    from zlaunch.launch.prepare import prepare
    from zlaunch.launch.rerun import prepare_rerun, restore_environment, what_changed
    from zlaunch.rundir.record import Lineage
    from zlaunch.runs.store import find_run, load_run

    if dry_run and as_json:
        raise WrongUsage("`--json` describes a new run, but `--dry-run` starts none", "keep one of them")
    repeated = load_run(find_run(run, runs_dir))
    _refuse_early(repeated, force)
    files, run_dir = repeated.files, None if run_dir is None else run_dir.absolute()
    variables = restore_environment(files.job)
    prepared = prepare_rerun(files, run_dir)
    changed = what_changed(files, prepared)
    if changed and not force:
        raise Refused(_findings(changed))
    _tell(repeated, changed, variables)
    rehearse = bool(files.forecast) and not force

    def look_into(job: "JobSpec", directory: Path | None) -> Examined:
        return examine(prepare(job, directory, prepared.beside), rehearse, force)

    first = examine(prepared, rehearse, force)
    if dry_run:
        show(first)
        return
    tried = see(first, look_into, Lineage(repeats=repeated.id))
    if as_json:
        _describe(tried.run, repeated.id, [*changed, *variables])
    raise typer.Exit(tried.ended.outcome.exit_status)


def _refuse_early(run: "RunSummary", force: bool) -> None:
    """Refuse a repetition that needs no further look."""
    from zlaunch.errors import InputMissing, Unavailable
    from zlaunch.runs.state import State

    if run.state is State.BROKEN:
        root = os.path.relpath(run.files.root)
        raise InputMissing(f"{root} holds no run to repeat: {run.cause}")
    if not run.state.is_over and not force:
        raise Unavailable(f"{run.id} is {run.state.value}", f"`zlaunch runs stop {run.id}` first")


def _tell(run: "RunSummary", changed: "Sequence[Change]", variables: "Sequence[Change]") -> None:
    from zlaunch import console

    console.say(f"repeats    {run.id}, in {Path.cwd()}")
    for one in changed:
        console.say(f"differs    {one.what}: was {one.then}, is {one.now}")
    for one in variables:
        console.say(f"restored   {one.what}: {one.now} → {one.then}")


def _describe(root: Path, repeated: str, differences: "Sequence[Change]") -> None:
    from zlaunch import console
    from zlaunch.cli.views.run import members
    from zlaunch.runs.store import load_run

    new = members(load_run(root))
    console.data(json.dumps({**new, "repeats": repeated, "changed": [asdict(one) for one in differences]}))


def _findings(changed: "Sequence[Change]") -> "list[Finding]":
    from zlaunch.errors import Finding

    last = len(changed) - 1
    hint = "`--force` starts it anyway"
    return [
        Finding(
            "not-as-it-was",
            f"it was {one.then}, and is {one.now}",
            hint if number == last else None,
            where=one.what,
        )
        for number, one in enumerate(changed)
    ]
