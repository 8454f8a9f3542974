"""A job that was looked into: shown, or started and seen through, whichever verb it comes from."""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from zlaunch.answers import Answer
    from zlaunch.attempts import Tried
    from zlaunch.job import JobSpec
    from zlaunch.manner import Manner
    from zlaunch.memory.forecast import Forecast
    from zlaunch.plan import LaunchPlan
    from zlaunch.prepare import Prepared
    from zlaunch.record import Lineage


@dataclass(frozen=True)
class Considered:
    """A job that was looked into: what it takes, and whether it starts all the same."""

    prepared: "Prepared"
    answer: "Answer | None"
    force: bool

    @property
    def forecast(self) -> "Forecast | None":
        """What was predicted, if anything was."""
        return None if self.answer is None else self.answer.forecast

    def look(self, plan: "LaunchPlan") -> None:
        """Look at the machine; raise Refused for what is missing."""
        from zlaunch.readiness import look_first

        look_first(self.prepared, self.forecast, self.force, plan)


def consider(
    job: "JobSpec", run_dir: Path | None, rehearse: bool, force: bool, beside: Path | None = None
) -> Considered:
    """Look into a job; raise what speaks against it."""
    from zlaunch.prepare import prepare
    from zlaunch.rundir import RUNS

    return considered(prepare(job, run_dir, beside or RUNS), rehearse, force)


def considered(prepared: "Prepared", rehearse: bool, force: bool) -> Considered:
    """Rehearse a job, if that was asked for or there are GPUs it must fit; refuse what cannot work."""
    return Considered(prepared, _answer(prepared, rehearse, force), force)


def _answer(prepared: "Prepared", rehearse: bool, force: bool) -> "Answer | None":
    if not rehearse and (force or not prepared.inputs.machine.gpus or prepared.model is None):
        return None
    from zlaunch.precheck import rehearse_first

    return rehearse_first(prepared)


def show(considered: Considered) -> None:
    """Show all that would be done, and all that speaks against it."""
    from zlaunch import console
    from zlaunch.cli.show_plan import plan_lines

    plan = considered.prepared.plan()
    for line in plan_lines(plan, complete=True):
        console.data(line)
    if considered.answer is not None:
        from zlaunch.cli.show_estimate import start_lines

        for line in start_lines(considered.answer):
            console.data(line)
    considered.look(plan)


def see(
    considered: Considered,
    consider: "Callable[[JobSpec, Path | None], Considered]",
    origin: "Lineage | None" = None,
) -> "Tried":
    """Start a job and see it through, as its user wished; return the last attempt."""
    from zlaunch import console
    from zlaunch.attempts import see_through
    from zlaunch.record import FIRST

    inputs = considered.prepared.inputs
    debugged = None if inputs.job.debug is None else inputs.job.debug.rank
    manner = inputs.job.wishes.manner(inputs.topology.world_size, console.is_interactive(), debugged)
    return see_through(considered, partial(_start, manner=manner), consider, origin or FIRST)


def _start(considered: Considered, lineage: "Lineage", manner: "Manner") -> "Tried":
    """Write the run directory, show it, and run the job."""
    from zlaunch import console, rundir
    from zlaunch.attempts import Tried
    from zlaunch.cli.show_plan import plan_lines
    from zlaunch.debugger import attach_lines
    from zlaunch.launch import carry_out
    from zlaunch.prepare import reserve

    plan = reserve(considered.prepared, sys.argv, considered.look, lineage)
    if considered.forecast is not None:
        rundir.write_forecast(plan.layout, considered.forecast)
    for line in plan_lines(plan, complete=False):
        console.say(line)
    for line in attach_lines(plan, str(Path.cwd())):
        console.say(line)
    return Tried(considered.prepared, plan.layout.root, carry_out(plan, manner))
