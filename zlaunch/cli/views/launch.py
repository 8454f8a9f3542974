"""Shows the events of a launch on the terminal."""

import os
from functools import singledispatchmethod
from pathlib import Path

from zlaunch import console
from zlaunch.cli.views.estimate_text import start_lines
from zlaunch.cli.views.launch_plan import attach_lines, plan_lines
from zlaunch.cli.views.progress import loss_line, milestone, plain_line, progress_line
from zlaunch.diagnosis.render import verdict_lines
from zlaunch.diagnosis.stall import stall_lines
from zlaunch.launch.events import (
    Compiling,
    DryRun,
    Ended,
    Event,
    JobOutput,
    Note,
    Progressed,
    Restarting,
    Stalled,
    Starting,
    Warned,
)
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.progress import phase_shown
from zlaunch.units import duration

PLAIN_SECONDS = 30.0
"""Time between two lines about the progress where there is no terminal."""

_LABEL_WIDTHS = {"model": 9, "stage": 6}
"""Label of a note → the width of the column of labels below it."""

_HEADS = {
    "finished": "finished in",
    "stumbled": "trained to the end in",
    "stalled": "ended for its stall after",
}


class LaunchView:
    """A `Report` that prints: plans and notes to stderr, the job's own output to stdout."""

    def __init__(self) -> None:
        self.run: Path | None = None
        """The directory of the last run that was started."""
        self._line = console.ProgressLine()
        self._is_within_line = False
        """Whether the job's output ended within a line."""
        self._milestone = 0
        self._plain = 0.0
        """When the last plain line was written."""

    def __call__(self, event: Event) -> None:
        """Show an event."""
        self._show(event)

    def _say(self, *lines: str) -> None:
        """Print lines of their own: an unfinished line of the job's output is ended first."""
        self._line.clear()
        if self._is_within_line and console.is_one_stream():
            console.say("")
            self._is_within_line = False
        for line in lines:
            console.say(line)

    @singledispatchmethod
    def _show(self, event: Event) -> None:
        raise NotImplementedError(type(event))

    @_show.register
    def _(self, event: Note) -> None:
        if event.label is None:
            self._say(event.text)
        else:
            row = (f"{event.label:<{_LABEL_WIDTHS[event.label]}}", event.text)
            self._say(*console.table([row], indent=""))

    @_show.register
    def _(self, event: Warned) -> None:
        console.say_findings(event.findings)

    @_show.register
    def _(self, event: DryRun) -> None:
        for line in plan_lines(event.plan, complete=True):
            console.data(line)
        for line in start_lines(event.estimate) if event.estimate is not None else ():
            console.data(line)

    @_show.register
    def _(self, event: Starting) -> None:
        self.run = event.plan.layout.root
        self._milestone, self._plain = 0, 0.0
        self._say(*plan_lines(event.plan, complete=False), *attach_lines(event.plan, str(Path.cwd())))

    @_show.register
    def _(self, event: Compiling) -> None:
        self._line.show(event.progress, event.elapsed)

    @_show.register
    def _(self, event: JobOutput) -> None:
        console.job_output(event.chunk)
        self._is_within_line = not event.chunk.endswith(b"\n")

    @_show.register
    def _(self, event: Progressed) -> None:
        progress, now = event.progress, event.progress.last.time
        if console.is_interactive():
            if not event.shows_output:
                width = console.width() - 1
                self._line.show(progress_line(progress, event.world_size, event.rss_bytes, width))
        elif progress.step:
            if now - self._plain >= PLAIN_SECONDS:
                self._plain = now
                self._say(plain_line(progress, event.world_size))
        elif (reached := milestone(progress)) > self._milestone:
            self._milestone, self._plain = reached, now
            self._say(phase_shown(progress.first))

    @_show.register
    def _(self, event: Stalled) -> None:
        lines = stall_lines(event.stall, event.seconds_per_step, console.width())
        self._say(*lines, f"all stacks are in {os.path.relpath(event.stacks)}")

    @_show.register
    def _(self, event: Restarting) -> None:
        self._say("", *console.paragraph(event.text))

    @_show.register
    def _(self, event: Ended) -> None:
        """Say how the job ended, why, and where to look."""
        took, verdict = duration(event.seconds), event.outcome.verdict
        about = f"all about this run is in {os.path.relpath(event.plan.layout.root)}"
        loss = loss_line(event.heartbeat) if event.outcome.how == "finished" else None
        lines = [] if loss is None else [loss]
        if verdict is None:
            log = [] if event.shows_output else [_log_note(event.plan, 0)]
            self._say(*lines, f"finished in {took}; {about}", *log)
            return
        head = _HEADS.get(event.outcome.how, f"{event.outcome.how} after")
        lines += verdict_lines(verdict, f"{head} {took}", console.width())
        lines += [] if verdict.rank is None else console.paragraph(_log_note(event.plan, verdict.rank))
        self._say(*lines, *console.paragraph(about))


def _log_note(plan: LaunchPlan, rank: int) -> str:
    return f"what rank {rank} printed is in {os.path.relpath(plan.layout.rank_log(rank))}"
