"""`zlaunch runs rerun`: repeat a run exactly."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.cli.options import AsJson, DryRun, Full, RunName, RunsDir
from zlaunch.cli.views.launch import LaunchView
from zlaunch.errors import Finding, InputMissing, Refused, Unavailable
from zlaunch.launch.options import LaunchOptions
from zlaunch.launch.preflight import show_plan
from zlaunch.launch.rerun import Change, prepare_rerun, restore_environment, what_changed
from zlaunch.launch.run import run as launch
from zlaunch.rundir.record import Lineage
from zlaunch.runs.run import Run, State
from zlaunch.runs.store import open_run


def rerun(
    run: RunName,
    run_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Run directory (default: beside the old one).")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Start even if something changed or a resource is short.")
    ] = False,
    dry_run: DryRun = False,
    full: Full = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Repeat a run exactly, in a new run directory.

    With --json, the last line of the output is an object about the new run; with --dry-run, the output
    is the plan.
    """
    repeated = open_run(run, runs_dir)
    _check_repeatable(repeated, force)
    files, run_dir = repeated, None if run_dir is None else run_dir.absolute()
    variables = restore_environment(files)
    view = LaunchView(as_json=as_json, full=full)
    options = LaunchOptions(
        interactive=console.is_interactive(),
        run_dir=run_dir,
        beside=files.root.parent,
        rehearse=bool(files.forecast) and not force,
        force=force,
        dry_run=dry_run,
        share=files.job.get("shared", False),
        origin=Lineage(repeats=repeated.id),
    )
    facts = prepare_rerun(files, options, view)
    changed = what_changed(files, facts)
    if changed and not force:
        raise Refused([_finding(change) for change in changed], "`--force` starts it as it is now")
    _say_changes(repeated, changed, variables)
    if dry_run:
        show_plan(facts, options, view)
        return
    status = launch(facts, options, view)
    view.print_json(repeats=repeated.id, changed=[*changed, *variables])
    raise typer.Exit(status)


def _check_repeatable(run: Run, force: bool) -> None:
    if run.state is State.BROKEN:
        root = os.path.relpath(run.root)
        raise InputMissing(f"{root} holds no run to repeat: {run.cause}")
    if not run.state.is_over and not force:
        raise Unavailable(f"{run.id} is {run.state.value}", f"`zlaunch runs stop {run.id}` first")


def _say_changes(run: Run, changed: Sequence[Change], variables: Sequence[Change]) -> None:
    console.say(f"repeats    {run.id}, in {Path.cwd()}")
    for change in changed:
        console.say(f"differs    {change.what}: was {change.then}, is {change.now}")
    for change in variables:
        console.say(f"restored   {change.what}: {change.now} → {change.then}")


def _finding(change: Change) -> Finding:
    message = f"differs from the run: was {change.then}, is {change.now}"
    return Finding("not-as-it-was", message, where=change.what)
