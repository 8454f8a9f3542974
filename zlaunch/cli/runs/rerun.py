"""`zlaunch runs rerun`: a run once more, exactly as it was."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.cli.runs.options import AsJson, Run, RunsDir
from zlaunch.cli.start import Examined, examine, see, show
from zlaunch.cli.views.run import members
from zlaunch.errors import Finding, InputMissing, Refused, Unavailable, WrongUsage
from zlaunch.job.spec import JobSpec
from zlaunch.launch.prepare import prepare
from zlaunch.launch.rerun import Change, prepare_rerun, recorded_run, restore_environment, what_changed
from zlaunch.rundir.record import Lineage, RunRecord, State
from zlaunch.runs.store import find_run, load_run


def rerun(
    run: Run,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where it is recorded; beside the old one if left out."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Start even if something is not what it was, or is short.")
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
    if dry_run and as_json:
        raise WrongUsage("`--json` is about a new run, and `--dry-run` starts none", "keep one of them")
    record = load_run(find_run(run, runs_dir))
    _refuse_early(record, force)
    run_dir = None if run_dir is None else run_dir.absolute()
    past = recorded_run(record.found)
    variables = restore_environment(past)
    prepared = prepare_rerun(record.found, run_dir)
    changed = what_changed(past, prepared)
    if changed and not force:
        raise Refused(_findings(changed))
    _tell(record, changed, variables)
    rehearse = bool(record.found.forecast) and not force

    def look_into(job: JobSpec, directory: Path | None) -> Examined:
        return examine(prepare(job, directory, prepared.beside), rehearse, force)

    first = examine(prepared, rehearse, force)
    if dry_run:
        show(first)
        return
    tried = see(first, look_into, Lineage(repeats=record.id))
    if as_json:
        _describe(tried.run, record.id, [*changed, *variables])
    raise typer.Exit(tried.ended.outcome.exit_status)


def _refuse_early(record: RunRecord, force: bool) -> None:
    """Raise what speaks against a repetition before anything of it is looked into."""
    if record.state is State.BROKEN:
        root = os.path.relpath(record.found.root)
        raise InputMissing(f"{root} holds no run that could be repeated: {record.cause}")
    if not record.state.is_over and not force:
        raise Unavailable(f"{record.id} is {record.state.value}", f"`zlaunch runs stop {record.id}` first")


def _tell(record: RunRecord, changed: Sequence[Change], variables: Sequence[Change]) -> None:
    console.say(f"repeats    {record.id}, in {Path.cwd()}")
    for one in changed:
        console.say(f"differs    {one.what}: was {one.then}, is {one.now}")
    for one in variables:
        console.say(f"set back   {one.what}: {one.now} → {one.then}")


def _describe(root: Path, repeated: str, differences: Sequence[Change]) -> None:
    new = members(load_run(root))
    console.data(json.dumps({**new, "repeats": repeated, "changed": [asdict(one) for one in differences]}))


def _findings(changed: Sequence[Change]) -> list[Finding]:
    """Refuse with everything that is not what it was."""
    last = len(changed) - 1
    hint = "`--force` starts it all the same"
    return [
        Finding(
            "not-as-it-was",
            f"it was {one.then}, and is {one.now}",
            hint if number == last else None,
            where=one.what,
        )
        for number, one in enumerate(changed)
    ]
