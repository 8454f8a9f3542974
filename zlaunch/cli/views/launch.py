"""Shows a launch on the terminal."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from zlaunch import console
from zlaunch.cli.views.achieved import achieved
from zlaunch.cli.views.dump import to_json
from zlaunch.cli.views.launch_plan import attach_lines, plan_lines
from zlaunch.cli.views.plan_view import PlanView
from zlaunch.cli.views.progress import milestone, plain_line, progress_line
from zlaunch.cli.views.run import headed, members, saved_rows, tracker_rows
from zlaunch.diagnosis.outcome import Outcome
from zlaunch.diagnosis.render import verdict_lines
from zlaunch.diagnosis.speed import SpeedLoss
from zlaunch.diagnosis.stall import StallEvidence, stall_lines
from zlaunch.launch.monitoring.progress import Progress, phase_shown
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.reporter import Reporter
from zlaunch.resume.saved_by_run import SavedByRun
from zlaunch.rundir.record import ErrorRecord
from zlaunch.runs.run import Run, State
from zlaunch.runs.store import load_run
from zlaunch.runs.why import HEADS
from zlaunch.units import duration

PLAIN_SECONDS = 30.0
"""Time between two lines about the progress where there is no terminal."""


class LaunchView(PlanView, Reporter):
    """Prints the output of the job to stdout, everything else to stderr."""

    def __init__(self, *, as_json: bool = False, full: bool = False) -> None:
        """Prepare to show a launch."""
        super().__init__(as_json=as_json, full=full)
        self.run: Path | None = None
        """The directory of the last run that was started."""
        self._outcome: Outcome | None = None
        self._is_within_line = False
        """Whether the job's output ended within a line."""
        self._shown_ranks: Sequence[int] = ()
        self._milestone = 0
        self._plain = 0.0
        """When the last plain line was written."""

    def _say(self, *lines: str) -> None:
        """Print whole lines: an unfinished one of the job's output is ended first."""
        self._line.clear()
        if self._is_within_line and console.is_one_stream():
            console.say("")
            self._is_within_line = False
        console.say(*lines)

    def starting(self, plan: LaunchPlan, shown_ranks: Sequence[int]) -> None:
        self.run, self._shown_ranks, self._milestone, self._plain = plan.layout.root, shown_ranks, 0, 0.0
        self._say(*plan_lines(plan, complete=False), *attach_lines(plan, str(Path.cwd())))

    def job_output(self, chunk: bytes) -> None:
        console.job_output(chunk)
        self._is_within_line = not chunk.endswith(b"\n")

    def progressed(self, progress: Progress, world_size: int) -> None:
        now = progress.last.time
        if console.is_interactive():
            if not self._shown_ranks:
                self._line.show(progress_line(progress, world_size, console.width() - 1))
        elif progress.step:
            if now - self._plain >= PLAIN_SECONDS:
                self._plain = now
                self._say(plain_line(progress, world_size))
        elif (reached := milestone(progress)) > self._milestone:
            self._milestone, self._plain = reached, now
            self._say(phase_shown(progress.first))

    def stalled(self, stall: StallEvidence, seconds_per_step: float | None, stacks: Path) -> None:
        lines = stall_lines(stall, seconds_per_step, console.width())
        self._say(*lines, f"stacks of all ranks: {os.path.relpath(stacks)}")

    def restarting(self, text: str) -> None:
        self._say("", *console.paragraph(text))

    def differed(self, differences: Sequence[str]) -> None:
        if differences:
            self._say("what ran differs from the plan:")
        for difference in differences:
            self._say(*console.paragraph(difference, "  "))

    def ignored(self, arguments: Sequence[str]) -> None:
        for argument in arguments:
            self._say(*console.paragraph(f"ignored: {argument}"))

    def slowed(self, losses: Sequence[SpeedLoss]) -> None:
        for loss in losses:
            text = "; ".join([loss.verdict.cause, *loss.verdict.advice[:1]])
            self._say(*console.paragraph(f"slow: {text}"))

    def saved(self, saved: SavedByRun) -> None:
        for name, place in saved_rows(saved):
            self._say(*console.paragraph(f"{name}: {place}"))

    def tracked(self, trackers: Mapping[str, Mapping[str, str]]) -> None:
        for name, place in tracker_rows(trackers):
            self._say(*console.paragraph(f"{name}: {place}"))

    def ended(self, plan: LaunchPlan, outcome: Outcome, seconds: float, run: Run) -> None:
        self._outcome = outcome
        state, verdict = State(outcome.how), outcome.verdict
        head = f"{HEADS[state]} {duration(seconds)}"
        about = f"details are in {os.path.relpath(plan.layout.root)}"
        if not plan.layout.job.exists():
            about = f"its run directory {os.path.relpath(plan.layout.root)} is gone"
        lines: list[str] = []
        if verdict is None:
            what = head
            if summary := achieved(run):
                what = f"{what}: {summary}"
            lines += [*headed(console.paragraph(what), head, state, sys.stderr), *console.paragraph(about)]
            if not self._shown_ranks:
                lines.append(_log_note(plan, 0))
            self._say(*lines)
            return
        self._show_traceback(run, verdict.rank)
        lines += headed(verdict_lines(verdict, head, console.width()), head, state, sys.stderr)
        if verdict.rank is not None and plan.layout.rank_log(verdict.rank).exists():
            lines += console.paragraph(_log_note(plan, verdict.rank))
        self._say(*lines, *console.paragraph(about))

    def _show_traceback(self, run: Run, rank: int | None) -> None:
        """Show the exception of the rank that failed first, where the output of another one was shown."""
        if rank is None or not self._shown_ranks or rank in self._shown_ranks:
            return
        if traceback := run.errors.get(rank, ErrorRecord()).get("traceback"):
            self._say(f"the exception of rank {rank}, which failed first:", traceback.rstrip())

    def print_json(self, **more: object) -> None:
        """With --json, print the record of the last run that was started."""
        if self._as_json and self.run is not None:
            run = load_run(self.run)
            known = members(run)
            if self._outcome is not None and not run.ending:  # its directory is gone, or read-only
                verdict = self._outcome.verdict
                known |= {"state": self._outcome.how, "exit_status": self._outcome.exit_status}
                known["cause"] = None if verdict is None else verdict.cause
            console.data(to_json({**known, **more}, indent=None))


def _log_note(plan: LaunchPlan, rank: int) -> str:
    return f"the log of rank {rank} is {os.path.relpath(plan.layout.rank_log(rank))}"
