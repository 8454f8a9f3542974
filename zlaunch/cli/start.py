"""A job that was looked into: shown, or started and seen through, whichever verb it comes from."""

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from zlaunch.rundir.record import FIRST, Lineage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zlaunch.estimate.fit import Cluster
    from zlaunch.estimate.forecast import Forecast
    from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected
    from zlaunch.estimate.rehearse import Rehearser
    from zlaunch.job.spec import JobSpec, MonitorOptions
    from zlaunch.launch.plan import LaunchPlan
    from zlaunch.launch.preflight.memory import Ask
    from zlaunch.launch.prepare import Prepared
    from zlaunch.launch.restart import Attempt


class SharedRehearser:
    """Answers all questions about a start with one program, which ends with the block."""

    def __init__(self) -> None:
        """Start and import nothing before the first question."""
        self._open = ExitStack()

    def __enter__(self) -> "SharedRehearser":
        """Give itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the program, if it was started."""
        self._open.close()

    def __call__(self, questions: "Sequence[EstimateQuery]", site: "Cluster") -> "list[Estimate | Rejected]":
        """Rehearse jobs on a site."""
        from zlaunch.estimate.run import estimate_by_rehearsal

        return estimate_by_rehearsal(questions, site, rehearse=self._rehearser)

    @cached_property
    def _rehearser(self) -> "Rehearser":
        from zlaunch.estimate.run import rehearser

        return self._open.enter_context(rehearser())


@dataclass(frozen=True)
class Examined:
    """A job that was looked into: what it takes, and whether it starts all the same."""

    prepared: "Prepared"
    answer: "Estimate | None"
    force: bool

    @property
    def forecast(self) -> "Forecast | None":
        """What was predicted, if anything was."""
        return None if self.answer is None else self.answer.forecast

    def look(self, plan: "LaunchPlan") -> None:
        """Look at the machine; raise Refused for what is missing."""
        from zlaunch.launch.preflight.run import run_preflight

        run_preflight(self.prepared, self.forecast, self.force, plan)


def examine(prepared: "Prepared", rehearse: bool, force: bool, ask: "Ask | None" = None) -> Examined:
    """Rehearse a job, if that was asked for or there are GPUs it must fit; refuse what cannot work.

    Give `ask` to ask again without starting another program.
    """
    if ask is not None:
        return Examined(prepared, _answer(prepared, rehearse, force, ask), force)
    with SharedRehearser() as once:
        return examine(prepared, rehearse, force, once)


def _answer(prepared: "Prepared", rehearse: bool, force: bool, ask: "Ask") -> "Estimate | None":
    if not rehearse and (force or not prepared.inputs.machine.gpus or prepared.model is None):
        return None
    from zlaunch import console
    from zlaunch.errors import Unavailable
    from zlaunch.launch.preflight.memory import check_memory

    try:
        answer = check_memory(prepared, ask)
    except Unavailable as error:
        if rehearse:
            raise
        console.say(error.message)  # the job may well work: it starts
        return None
    console.say_findings(answer.remarks)
    return answer


def show(examined: Examined) -> None:
    """Show all that would be done, and all that speaks against it."""
    from zlaunch import console
    from zlaunch.cli.views.launch_plan import plan_lines

    plan, inputs = examined.prepared.plan(), examined.prepared.inputs
    inputs.job.wishes.monitor_options(inputs.topology.world_size, console.is_interactive())  # may be wrong
    for line in plan_lines(plan, complete=True):
        console.data(line)
    if examined.answer is not None:
        from zlaunch.cli.views.estimate_text import start_lines

        for line in start_lines(examined.answer):
            console.data(line)
    examined.look(plan)


def see(
    examined: Examined,
    look_into: "Callable[[JobSpec, Path | None], Examined]",
    origin: Lineage = FIRST,
) -> "Attempt":
    """Start a job and see it through, as its user wished; return the last attempt."""
    from zlaunch import console
    from zlaunch.launch.restart import run_with_restarts

    inputs = examined.prepared.inputs
    debugged = None if inputs.job.debug is None else inputs.job.debug.rank
    manner = inputs.job.wishes.monitor_options(inputs.topology.world_size, console.is_interactive(), debugged)
    return run_with_restarts(examined, partial(_start, manner=manner), look_into, origin)


def _start(examined: Examined, lineage: Lineage, manner: "MonitorOptions") -> "Attempt":
    """Write the run directory, show it, and run the job."""
    from zlaunch import console
    from zlaunch.cli.views.launch_plan import plan_lines
    from zlaunch.launch.debugger import attach_lines
    from zlaunch.launch.execute import execute
    from zlaunch.launch.prepare import reserve
    from zlaunch.launch.restart import Attempt

    plan = reserve(examined.prepared, sys.argv, examined.look, lineage, examined.forecast)
    for line in plan_lines(plan, complete=False):
        console.say(line)
    for line in attach_lines(plan, str(Path.cwd())):
        console.say(line)
    return Attempt(examined.prepared, plan.layout.root, execute(plan, manner))
