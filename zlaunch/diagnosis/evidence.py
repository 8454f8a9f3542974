"""What is known about a run that has ended, as plain values: no file and no process is looked at here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zlaunch.rundir import phases


@dataclass(frozen=True, slots=True)
class ErrorEvidence:
    """The exception that ended a rank's script."""

    type: str
    message: str
    traceback: str = ""
    frame: Mapping[str, Any] | None = None
    """`file`, `line` and `function` of the deepest frame that is the user's own."""
    phase: str | None = None
    time: float | None = None


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """What one rank left behind."""

    rank: int
    host: str = ""
    returncode: int | None = None
    """Minus n for signal n. None: what ran around the script was lost too, or it never started."""
    stopped_by: int | None = None
    """The signal it was told to stop with; None if it ended of itself."""
    ended: float | None = None
    phase: str = ""
    step: int = 0
    error: ErrorEvidence | None = None
    log: str = ""
    """The end of what it printed."""
    stacks: str = ""
    """What faulthandler wrote."""
    peak_rss_bytes: int | None = None
    pulse: Mapping[str, Any] = field(default_factory=dict)
    sample: Mapping[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether it ended well, and of itself: a script that is told to stop may return 0, too."""
        return self.returncode == 0 and self.stopped_by is None

    @property
    def ran_to_its_end(self) -> bool:
        """Whether the script did, even if the process died while Python was leaving."""
        leaving = self.phase == phases.EXITING and self.error is None and self.stopped_by is None
        return self.finished or (leaving and self.returncode is not None and self.returncode < 0)


@dataclass(frozen=True, slots=True)
class MachineEvidence:
    """What one host had left, when it was last looked at."""

    host: str
    memory_bytes: int | None = None
    memory_available_bytes: int | None = None
    cgroup_bytes: int | None = None
    cgroup_limit_bytes: int | None = None
    oom_kills: int | None = None
    """How many more processes the kernel has killed for want of memory than when the run began."""
    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    disk_free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StallEvidence:
    """A run that took no step any more."""

    seconds: float
    step: int = 0
    where: Mapping[int, str] = field(default_factory=dict)
    """Rank → `file:line function`."""
    odd: tuple[int, ...] = ()
    """The ranks that are elsewhere than most."""
    ended_job: bool = True
    """Whether the job was ended for it, or it was only told and the job ended otherwise."""


@dataclass(frozen=True, slots=True)
class JobEvidence:
    """What was run."""

    launcher: str = "torchrun"
    stage: int = 0
    offload: Mapping[str, str] = field(default_factory=dict)
    """`optimizer` or `param` → the device it is on."""
    micro_batch: int = 1
    grad_accum: int = 1
    world_size: int = 1
    precision: str = "fp32"
    accelerator: str = "cpu"
    script: str = ""
    uses_trainer: bool = True
    forecast: Mapping[str, Any] | None = None
    """What `forecast.json` says."""
    gradient_checkpointing: bool | None = None
    """Whether activations are computed again; None if nobody knows."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The ds_config."""

    @property
    def moved(self) -> Mapping[str, str]:
        """Say which states are not on the GPU, and where they are."""
        return {part: device for part, device in self.offload.items() if device not in (None, "none")}


@dataclass(frozen=True, slots=True)
class Evidence:
    """All of it."""

    job: JobEvidence = JobEvidence()
    ranks: tuple[RankEvidence, ...] = ()
    machines: tuple[MachineEvidence, ...] = ()
    launcher_returncode: int = 0
    launcher_log: str = ""
    stopped_by: int | None = None
    """The signal that a person, or the system, stopped zlaunch with."""
    by_command: bool = False
    """Whether `zlaunch runs stop` did."""
    stall: StallEvidence | None = None
