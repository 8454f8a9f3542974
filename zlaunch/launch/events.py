"""What happens during a launch. `launch` prints nothing: it passes these events to a `Report`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from zlaunch.diagnosis.evidence import StallEvidence
from zlaunch.diagnosis.outcome import Outcome
from zlaunch.errors import Finding
from zlaunch.estimate.query import Estimate
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.progress import Progress


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence about the launch."""

    text: str
    label: str | None = None
    """The row of the plan's summary it belongs to."""


@dataclass(frozen=True, slots=True)
class Warned:
    """Findings that do not stop the launch."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class DryRun:
    """The plan and the memory estimate of a job that will not be started."""

    plan: LaunchPlan
    estimate: Estimate | None


@dataclass(frozen=True, slots=True)
class Starting:
    """The run directory is written; the job starts next."""

    plan: LaunchPlan


@dataclass(frozen=True, slots=True)
class Compiling:
    """Progress of compiling a native op."""

    progress: str
    elapsed: str


@dataclass(frozen=True, slots=True)
class JobOutput:
    """New output of the ranks that are shown."""

    chunk: bytes


@dataclass(frozen=True, slots=True)
class Progressed:
    """All ranks were sampled."""

    progress: Progress
    world_size: int
    rss_bytes: int | None
    """Resident memory of rank 0."""
    shows_output: bool
    """Whether the output of any rank is shown."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """No rank makes progress."""

    stall: StallEvidence
    seconds_per_step: float | None
    stacks: Path
    """The directory with the stacks of all ranks."""


@dataclass(frozen=True, slots=True)
class Restarting:
    """What is tried after a failure, or why it cannot be tried."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The job has ended, and the outcome is recorded."""

    plan: LaunchPlan
    outcome: Outcome
    seconds: float
    heartbeat: Mapping[str, object]
    """The last heartbeat of rank 0."""
    shows_output: bool


Event = Note | Warned | DryRun | Starting | Compiling | JobOutput | Progressed | Stalled | Restarting | Ended
Report = Callable[[Event], None]
