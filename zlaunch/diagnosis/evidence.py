"""The evidence of a run that has ended, as plain values."""

import signal
from collections.abc import Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Any, TypeVar, cast

from zlaunch.diagnosis.stall import StallEvidence
from zlaunch.frozen import dataclass
from zlaunch.job.script import ConfigInterface, Handover, Setting, setting_of
from zlaunch.rundir import phases
from zlaunch.rundir.record import ForecastRecord, FrameRecord, HeartbeatRecord, MachineSample, SampleRecord
from zlaunch.worker.sampling import OomKills

Value = TypeVar("Value")


def filled(kind: type[Value], members: Mapping[str, object]) -> Value:
    """Make a dataclass of those members of a record that are its fields."""
    names = {member.name for member in fields(cast("Any", kind))}
    return kind(**{name: member for name, member in members.items() if name in names})


@dataclass(frozen=True, slots=True)
class ErrorEvidence:
    """The exception that ended a rank's script."""

    type: str = ""
    message: str = ""
    traceback: str = ""
    frame: FrameRecord | None = None
    """The deepest frame in the user's own code."""
    phase: str | None = None
    time: float | None = None

    def __str__(self) -> str:
        """Write type and message, as Python does."""
        return f"{self.type}: {self.message}" if self.message else self.type


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """The records and logs of one rank."""

    rank: int
    host: str = ""
    has_started: bool = False
    """Whether its rank program has recorded that the script runs."""
    returncode: int | None = None
    """-n for signal n; None if the rank program was lost too, or never started."""
    stopped_by: int | None = None
    """The signal it was told to stop with; None if it ended by itself."""
    stopped_at: float | None = None
    """When that was, by the clock of its host."""
    signalled: bool = False
    """Whether somebody, or its launcher, sent it the signal."""
    ended: float | None = None
    phase: str = ""
    step: int = 0
    error: ErrorEvidence | None = None
    log: str = ""
    """The end of what it printed."""
    stacks: str = ""
    """What faulthandler wrote."""
    peak_rss_bytes: int | None = None
    heartbeat: HeartbeatRecord = field(default_factory=HeartbeatRecord)
    sample: SampleRecord = field(default_factory=SampleRecord)
    node: int = 0
    """The number of its host among those of the job."""

    @property
    def finished(self) -> bool:
        """Whether it succeeded by itself: a script that is stopped may return 0, too."""
        return self.returncode == 0 and self.stopped_by is None

    @property
    def last_phase(self) -> str:
        """Where it was before it ended."""
        if self.error is not None and self.error.phase:
            return self.error.phase
        return self.phase

    @property
    def when(self) -> str | None:
        """The step in which, or after which, it ended; None if that is not known.

        Without an exception, a forward pass may also be one of an evaluation. A job that was resumed may not
        tell its step before it has taken one.
        """
        phase, done = self.last_phase, self.step or self.heartbeat.get("first_step")
        is_training = phase == phases.FORWARD and self.error is not None
        if done is not None and (is_training or phase in (phases.BACKWARD, phases.STEPPING)):
            return f"in step {done + 1}"
        if self.step:
            return f"after step {self.step}"
        return None

    @property
    def never_started(self) -> bool:
        """Whether it left no sign of itself."""
        has_begun = self.has_started or self.log or self.phase or self.heartbeat or self.stopped_by
        return self.returncode is None and not has_begun

    @property
    def ran_to_its_end(self) -> bool:
        """Whether the script finished, even if the process died while Python was exiting."""
        leaving = self.phase == phases.EXITING and self.error is None and self.stopped_by is None
        return self.finished or (leaving and self.returncode is not None and self.returncode < 0)


@dataclass(frozen=True, slots=True)
class HostEvidence:
    """The part of a job on one host, where zlaunch itself started a launcher on each."""

    host: str = ""
    ended: float | None = None
    returncode: int | None = None
    """That of its launcher; None if it was lost before."""
    stopped_by: int | None = None
    error: str = ""
    """Why its launcher could not be started."""
    lost: str = ""
    """Why nothing more was heard from it."""
    said: str = ""
    """The last words of ssh or srun about it."""
    node: int = 0
    """Its number among the hosts of the job."""

    @property
    def has_failed(self) -> bool:
        """Whether the host, or its launcher, was gone before anybody stopped the job."""
        was_killed = self.returncode is not None and self.returncode < 0 and self.stopped_by is None
        return bool(self.lost or self.error) or was_killed


@dataclass(frozen=True, slots=True)
class SaveEvidence:
    """A request to save and stop, and its result."""

    by: str
    """Who asked: `SIGUSR1`, `the time limit of 2 h`."""
    step: int | None = None
    """The step after which all ranks were to save; None if nothing could be saved."""
    why_not: str = ""
    """Why nothing could be saved."""
    advice: str = ""
    """What to do so that it can be."""
    within: float = 0.0
    """Seconds that the ranks had for it."""
    checkpoint: str | None = None
    """The complete checkpoint of that step, if the training has not reached its end."""
    is_limit: bool = False
    """Whether a time limit asked."""
    resumed_step: int | None = None
    """The step of the checkpoint from which the run was to resume."""

    @property
    def is_no_progress(self) -> bool:
        """Whether the run saved no step after the one it resumed from."""
        return self.step is not None and self.resumed_step is not None and self.step <= self.resumed_step


@dataclass(frozen=True, slots=True)
class JobEvidence:
    """The job that was run."""

    launcher: str = "torchrun"
    reach: str = ""
    """How zlaunch reached the hosts, a value of `Reach`; empty in older records."""
    stage: int = 0
    offload: Mapping[str, str] = field(default_factory=dict)
    """`optimizer` or `param` → the device it is on; what stays on the GPU is not listed."""
    micro_batch: int = 1
    grad_accum: int = 1
    world_size: int = 1
    precision: str = "fp32"
    accelerator: str = "cpu"
    script: str = ""
    appended: tuple[str, ...] = ()
    """Arguments that zlaunch added to those of the user."""
    interface: ConfigInterface = ConfigInterface.TRAINER
    handover: Handover = Handover.ARGUMENTS
    forecast: ForecastRecord | None = None
    gradient_checkpointing: bool | None = None
    """Whether activations are recomputed; None if unknown."""
    names_workers: bool = False
    """Whether the script gives a `DataLoader` processes that load data."""
    config: Mapping[str, object] = field(default_factory=dict)
    """The ds_config."""
    forced: tuple[str, ...] = ()
    """Why it would have been refused without `--force`."""
    pointers: Mapping[str, str] = field(default_factory=dict)
    """File of its model or checkpoint that git has not downloaded → what to say of it."""

    @property
    def setting(self) -> Setting | None:
        """How a setting of its training can be changed; None if only the script can."""
        return setting_of(self.interface, self.handover)

    @property
    def takes_ds_config(self) -> bool:
        """Whether it trained with the ds_config of zlaunch."""
        return self.handover is not Handover.NOT

    @property
    def uses_trainer(self) -> bool:
        """Whether the Trainer read the ds_config."""
        return self.interface is ConfigInterface.TRAINER


@dataclass(frozen=True, slots=True)
class DiskEvidence:
    """The file system of a directory, after the run; bytes."""

    directory: Path
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """All evidence of a run."""

    job: JobEvidence = JobEvidence()
    ranks: tuple[RankEvidence, ...] = ()
    machines: Mapping[str, MachineSample] = field(default_factory=dict)
    """Host → its last sample."""
    launcher_returncode: int = 0
    launcher_log: str = ""
    oom_kills: Mapping[str, OomKills] = field(default_factory=dict)
    """Host → kills since the run began."""
    stopped_by: int | None = None
    """The signal that zlaunch itself was stopped with, or somebody's signal to its launcher or a rank."""
    stopped_at: float | None = None
    """When that was, by the clock of `stopped_on`; None if unknown."""
    stopped_on: str = ""
    """The host that got the signal."""
    command: str | None = None
    """The command of zlaunch that stopped it, such as `zlaunch runs stop`."""
    stall: StallEvidence | None = None
    is_diverged: bool = False
    """Whether zlaunch ended it because its loss was not finite any more."""
    hosts: tuple[HostEvidence, ...] = ()
    """Empty where zlaunch started only one launcher."""
    save: SaveEvidence | None = None
    """The request to save and stop, if there was one."""
    save_disk: DiskEvidence | None = None
    """The file system of the checkpoints; None if unknown."""
    takes_records: bool = True
    """Whether ranks could write or print records to the end: otherwise a missing one says nothing."""

    @property
    def was_ended(self) -> bool:
        """Whether zlaunch ended the job: what is killed then says nothing about the cause."""
        has_stalled = self.stall is not None and self.stall.ended_job
        return self.stopped_by is not None or self.is_diverged or has_stalled

    @property
    def is_preempted(self) -> bool:
        """Whether it was saved as asked, so that it can be resumed later."""
        is_saved = self.save is not None and self.save.checkpoint is not None
        return is_saved and self.stopped_by != signal.SIGINT
