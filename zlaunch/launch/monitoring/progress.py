"""Progress, speed and stalls of a job, computed from the heartbeats of its ranks."""

import statistics
from collections.abc import Mapping
from dataclasses import field, replace

from zlaunch.frozen import dataclass
from zlaunch.job.spec import STEP_PATIENCE_SECONDS
from zlaunch.rundir import phases
from zlaunch.rundir.record import HeartbeatRecord, SampleRecord

KEPT_STEPS = 50
"""How many of the last steps count for the speed."""

STEP_PATIENCE_FACTOR = 5.0
"""A step may take this many times as long as the median of those before it."""

PATIENCE = {phases.JOINING: 5.0, phases.BUILDING: 10.0}
"""Phase → how many times the least patience with a step it may take without a heartbeat."""
LONG_PATIENCE = 30.0
"""The same for all other phases outside of a step, and for the first one: loading, saving and compiling take
their time."""
UNTIMED_PATIENCE = 5.0
"""The same for later steps, as long as no two of them tell how long one takes."""

PREPARING = "preparing"
"""Shown for a script that runs its own code after its start and before its first step."""

QUIET_SECONDS = 10.0
QUIET_STEPS = 2.0
"""Time without progress, also in steps, after which it is shown, long before it counts as a stall."""

IDLE_CORES = 0.05
"""A job without heartbeats moves as long as it uses more of a core than this."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The last heartbeats of all ranks, at one moment of a monotonic clock."""

    time: float
    heartbeats: Mapping[int, HeartbeatRecord]
    cpu_seconds: float | None = None
    """CPU time of all ranks together; None if it was not read."""
    is_compiling: bool = False
    """Whether a compiler works inside a rank, as for `torch.compile` or a native op."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a job, computed from all snapshots so far.

    Times are those of the snapshots, because the clocks of other hosts differ. Only differences between two
    times of rank 0 are used.
    """

    last: Snapshot
    moved: float
    """When any rank last reported anything new."""
    phase_began: float
    """When rank 0 was first seen in its phase."""
    computed: tuple[float, float] | None = None
    """CPU seconds of all ranks, and when they were reached."""
    has_begun: bool = False
    """Whether rank 0 has been past its start: its own code from then on is no start."""
    steps: tuple[tuple[int, float, int], ...] = ()
    """The last steps: number, time, and tokens of rank 0 so far."""
    mfu: float | None = None
    """Model FLOPs utilization, where the peak of the GPU is known."""
    sample: SampleRecord = field(default_factory=SampleRecord)
    """What rank 0 uses of its host and its GPU."""

    def after(self, new: Snapshot) -> "Progress":
        """Take in another snapshot; for a rank that could not be read the heartbeat before still counts."""
        before = self.last.heartbeats
        new = replace(new, heartbeats={**before, **new.heartbeats})
        has_news = any(
            before.get(rank, {}).get("time") != heartbeat.get("time")
            for rank, heartbeat in new.heartbeats.items()
        )
        first, computed = new.heartbeats.get(0, {}), self._computed_with(new)
        if new.is_compiling or (_is_silent(new.heartbeats) and computed != self.computed):
            has_news = True
        following = replace(
            self,
            last=new,
            computed=computed,
            has_begun=self.has_begun or phase_shown(first) not in (phases.STARTING, phases.ATTACHING),
            steps=self._steps_with(new),
        )
        if has_news:
            following = replace(following, moved=new.time)
        if following.doing != self.doing:
            following = replace(following, phase_began=new.time)
        return following

    def _computed_with(self, new: Snapshot) -> tuple[float, float] | None:
        """Count as progress only if the ranks used more CPU time than idle ones do."""
        if new.cpu_seconds is None:
            return self.computed
        if self.computed is not None:
            before, when = self.computed
            ranks = max(1, len(new.heartbeats))
            if new.cpu_seconds - before <= IDLE_CORES * ranks * (new.time - when):
                return self.computed
        return new.cpu_seconds, new.time

    def _steps_with(self, new: Snapshot) -> tuple[tuple[int, float, int], ...]:
        heartbeat = new.heartbeats.get(0, {})
        step = int(heartbeat.get("step") or 0)
        if step < 1 or (self.steps and self.steps[-1][0] == step):
            return self.steps
        known = (step, float(heartbeat.get("time") or 0.0), int(heartbeat.get("tokens") or 0))
        if self.steps and step < self.steps[-1][0]:  # a script may train twice and count from 1 again
            return (known,)
        return (*self.steps[-KEPT_STEPS:], known)

    @property
    def first(self) -> HeartbeatRecord:
        """The last heartbeat of rank 0."""
        return self.last.heartbeats.get(0, {})

    @property
    def doing(self) -> str:
        """The phase of rank 0 as it is shown."""
        phase = phase_shown(self.first)
        if phase == phases.STARTING and self.has_begun:
            return PREPARING
        return phase

    @property
    def step(self) -> int:
        """The number of completed steps."""
        return int(self.first.get("step") or 0)

    @property
    def seconds_per_step(self) -> float | None:
        """The median over the last steps."""
        pairs = list(zip(self.steps, self.steps[1:], strict=False))
        if not pairs:
            return None
        return max(0.0, statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs))

    @property
    def total(self) -> int | None:
        """The number of steps of the whole job, if the script has reported it."""
        return max(0, int(self.first.get("steps") or 0)) or None

    @property
    def seconds_left(self) -> float | None:
        """Time of the remaining steps."""
        each = self.seconds_per_step
        if self.total is None or each is None or self.quiet_seconds is not None:
            return None
        return max(0, self.total - self.step) * each

    @property
    def quiet_seconds(self) -> float | None:
        """Time without progress; None while that is usual for this job."""
        quiet = self.last.time - self.moved
        if quiet < max(QUIET_SECONDS, QUIET_STEPS * (self.seconds_per_step or 0.0)):
            return None
        return quiet

    def tokens_per_second(self, world_size: int) -> float | None:
        """Tokens of all ranks; None if the model does not take `input_ids`."""
        if len(self.steps) < 2 or not self.steps[-1][2]:
            return None
        (_, began, before), (_, ended, after) = self.steps[0], self.steps[-1]
        if ended <= began or after <= before:
            return None
        return (after - before) / (ended - began) * world_size

    def patience(self, least: float = STEP_PATIENCE_SECONDS) -> float:
        """Seconds without a new heartbeat before that is a stall."""
        current = {str(heartbeat.get("phase")) for heartbeat in self.last.heartbeats.values()}
        each = self.seconds_per_step
        if current - set(phases.STEPS):
            return least * max(PATIENCE.get(phase, LONG_PATIENCE) for phase in current)
        if each is None and self.step:
            return least * UNTIMED_PATIENCE
        if each is None:
            return least * LONG_PATIENCE
        return max(least, STEP_PATIENCE_FACTOR * each)

    def stalled_seconds(self, now: float, least: float = STEP_PATIENCE_SECONDS) -> float | None:
        """Seconds without progress, if the job has stalled; None if it never had a heartbeat."""
        heartbeats = self.last.heartbeats
        if not heartbeats or (_is_silent(heartbeats) and self.computed is None):
            return None
        silent = now - self.moved
        if silent <= self.patience(least):
            return None
        return silent


def _is_silent(heartbeats: Mapping[int, HeartbeatRecord]) -> bool:
    """Whether all ranks run code without heartbeats, where only CPU time shows progress."""
    return all(heartbeat.get("phase") == phases.STARTING for heartbeat in heartbeats.values())


def no_progress(now: float) -> Progress:
    """Begin without any snapshot."""
    return Progress(Snapshot(now, {}), now, now)


def phase_shown(heartbeat: HeartbeatRecord) -> str:
    """Name a phase as it is shown: until the first step ends, its phases are the first of their kind."""
    phase = str(heartbeat.get("phase") or phases.STARTING)
    if not heartbeat.get("step") and phase in (phases.FORWARD, phases.BACKWARD, phases.STEPPING):
        return f"first {phase}"
    return phase
