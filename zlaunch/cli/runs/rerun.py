"""`zlaunch runs rerun`: a run once more, exactly as it was."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zlaunch.cli.runs.options import AsJson, Run, RunsDir

if TYPE_CHECKING:
    from zlaunch.errors import Finding
    from zlaunch.plan import LaunchPlan
    from zlaunch.repeat import Change


def rerun(
    run: Run,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where it is recorded; beside the old one if left out."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Start even if something is not what it was.")
    ] = False,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Repeat a run exactly, in a new run directory.

    With --json, the last line of the output is an object about the new run.
    """
    from zlaunch import console
    from zlaunch.again import go_back, machine_of, past_of, plan_for, reserve_again, what_changed
    from zlaunch.errors import InputMissing, Refused, Unavailable
    from zlaunch.record import State
    from zlaunch.records import find, look_at

    root = find(run, runs_dir)
    record = look_at(root)
    if record.state is State.BROKEN:
        raise InputMissing(f"{root} holds no run that could be repeated: {record.cause}")
    run_dir = None if run_dir is None else run_dir.absolute()
    past = past_of(record.found)
    variables = go_back(past)
    draft = plan_for(past, run_dir, root.parent)
    machine = machine_of(draft)
    changed = what_changed(past, draft, machine)
    if not record.state.is_over and not force:
        raise Unavailable(f"{root.name} is {record.state.value}", f"`zlaunch runs stop {root.name}` first")
    if changed and not force:
        raise Refused(_findings(changed))
    console.say(f"repeats    {root.name}, in {Path.cwd()}")
    for one in changed:
        console.say(f"differs    {one.what}: was {one.then}, is {one.now}")
    for one in variables:
        console.say(f"set back   {one.what}: {one.now} → {one.then}")
    plan = reserve_again(record.found, run_dir, machine, sys.argv)
    status = _start(plan)
    if as_json:
        _describe(plan, root.name, [*changed, *variables])
    raise typer.Exit(status)


def _start(plan: "LaunchPlan") -> int:
    """Show the plan and carry it out, as a first run; return the exit status."""
    from zlaunch import console
    from zlaunch.cli.show_plan import plan_lines
    from zlaunch.launch import carry_out
    from zlaunch.manner import Manner, ranks_to_show

    for line in plan_lines(plan, complete=False):
        console.say(line)
    shown = ranks_to_show(None, plan.topology.world_size, console.is_interactive())
    return carry_out(plan, Manner(shown)).outcome.exit_status


def _describe(plan: "LaunchPlan", repeated: str, differences: "Sequence[Change]") -> None:
    from zlaunch import console
    from zlaunch.cli.runs.summary import members
    from zlaunch.records import look_at

    new = members(look_at(plan.layout.root))
    console.data(json.dumps({**new, "repeats": repeated, "changed": [asdict(one) for one in differences]}))


def _findings(changed: "Sequence[Change]") -> "list[Finding]":
    """Refuse with everything that is not what it was."""
    from zlaunch.errors import Finding

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
