"""The interface through which `launch` reports what happens; it prints nothing itself."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from zlaunch.console import StepReporter
from zlaunch.errors import Finding

if TYPE_CHECKING:  # a dry run runs and diagnoses nothing
    from zlaunch.diagnosis.outcome import Outcome
    from zlaunch.diagnosis.speed import SpeedLoss
    from zlaunch.diagnosis.stall import StallEvidence
    from zlaunch.launch.monitoring.progress import Progress
    from zlaunch.launch.plan import LaunchPlan
    from zlaunch.resume.saved_by_run import SavedByRun
    from zlaunch.runs.run import Run


class PlanReporter(StepReporter, Protocol):
    """Shows the plan of a job, and what is found before it starts."""

    def warn(self, findings: Sequence[Finding]) -> None:
        """Show findings that do not stop the launch."""

    def dry_run(self, plan: "LaunchPlan", unchecked: str | None) -> None:
        """Show the plan and the memory estimate of a job that will not be started, or why there is none."""


class Reporter(PlanReporter, Protocol):
    """Shows a launch, or records it."""

    def starting(self, plan: "LaunchPlan", shown_ranks: Sequence[int]) -> None:
        """The run directory is written; the job starts next, and the output of these ranks is shown."""

    def job_output(self, chunk: bytes) -> None:
        """New output of the ranks that are shown."""

    def progressed(self, progress: "Progress", world_size: int) -> None:
        """All ranks were sampled; `rss_bytes` is the resident memory of rank 0."""

    def stalled(self, stall: "StallEvidence", seconds_per_step: float | None, stacks: Path) -> None:
        """No rank makes progress; the stacks of all are in a directory."""

    def restarting(self, text: str) -> None:
        """The next attempt after a failure, or why there is none."""

    def differed(self, differences: Sequence[str]) -> None:
        """What the job really trained with, where that differs from the plan."""

    def ignored(self, arguments: Sequence[str]) -> None:
        """The arguments that had no effect in what ran, each with the reason."""

    def slowed(self, losses: "Sequence[SpeedLoss]") -> None:
        """What limits the speed of the job, the most expensive first."""

    def saved(self, saved: "SavedByRun") -> None:
        """The model and the newest checkpoint that the job has left."""

    def tracked(self, trackers: Mapping[str, Mapping[str, str]]) -> None:
        """Where the job has reported its metrics: tracker → `url`, `directory` or `project`."""

    def ended(self, plan: "LaunchPlan", outcome: "Outcome", seconds: float, run: "Run") -> None:
        """The job has ended, and the outcome is recorded."""
