"""How far a job is, how fast it goes, and whether it still moves: a function of what its ranks said."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from zlaunch.job.spec import STEP_PATIENCE_SECONDS
from zlaunch.rundir import phases
from zlaunch.rundir.record import HeartbeatRecord
from zlaunch.units import brief, clock

KEPT_STEPS = 50
"""How many of the last steps count for the speed."""

STEP_PATIENCE_FACTOR = 5.0
"""A step may take this many times as long as the median of those before it."""

PATIENCE = {phases.JOINING: 5.0, phases.BUILDING: 10.0}
"""Phase → how many times the least patience with a step it may take without a sign of life."""
LONG_PATIENCE = 30.0
"""For all others outside of a step: loading and saving take their time."""


QUIET_SECONDS = 10.0
"""Ranks that say nothing for this long are mentioned, long before that is a stall."""

PREPARING = "preparing"
"""What is shown of a script that runs its own code before its first step, and is past its start."""

CELLS = 12
"""Of the bar."""

IDLE_CORES = 0.05
"""A job that says nothing of its steps moves as long as it uses more of a core than this."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the ranks said last, at one moment of a clock that never jumps."""

    time: float
    pulses: Mapping[int, HeartbeatRecord]
    cpu_seconds: float | None = None
    """What the ranks have computed so far, all together; None if nobody looked."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What was learnt from all looks so far.

    Moments are those of the looks: the clocks of other hosts differ. Only differences between two
    moments that rank 0 names are taken from it.
    """

    look: Snapshot
    moved: float
    """When a rank last said anything new."""
    phase_began: float
    """When rank 0 was first seen in its phase."""
    computed: tuple[float, float] | None = None
    """CPU seconds of all ranks, and when they were as many."""
    has_begun: bool = False
    """Whether rank 0 has been seen at anything: what it does of itself from then on is no start."""
    steps: tuple[tuple[int, float, int], ...] = ()
    """Step, the moment it was reached, tokens that had gone forward on rank 0; the last ones."""

    def after(self, look: Snapshot) -> "Progress":
        """Take in another look; of a rank that could not be read, what it said before still counts."""
        told = self.look.pulses
        look = replace(look, pulses={**told, **look.pulses})
        news = any(told.get(rank, {}).get("time") != pulse.get("time") for rank, pulse in look.pulses.items())
        now, computed = look.pulses.get(0, {}), self._computed_with(look)
        if _says_nothing_more(look.pulses) and computed != self.computed:
            news = True
        following = replace(
            self,
            look=look,
            moved=look.time if news else self.moved,
            computed=computed,
            has_begun=self.has_begun or phase_shown(now) not in (phases.STARTING, phases.ATTACHING),
            steps=self._steps_with(look),
        )
        return following if following.doing == self.doing else replace(following, phase_began=look.time)

    def _computed_with(self, look: Snapshot) -> tuple[float, float] | None:
        """Move on only when ranks have computed, since the last time they had, more than idle ones do."""
        if look.cpu_seconds is None or self.computed is None:
            return self.computed if look.cpu_seconds is None else (look.cpu_seconds, look.time)
        before, when = self.computed
        used, ranks = look.cpu_seconds - before, max(1, len(look.pulses))
        return (
            (look.cpu_seconds, look.time) if used > IDLE_CORES * ranks * (look.time - when) else self.computed
        )

    def _steps_with(self, look: Snapshot) -> tuple[tuple[int, float, int], ...]:
        pulse = look.pulses.get(0, {})
        step = int(pulse.get("step") or 0)
        if step < 1 or (self.steps and self.steps[-1][0] == step):
            return self.steps
        known = (step, float(pulse.get("time") or 0.0), int(pulse.get("tokens") or 0))
        # A script may train twice, and count anew.
        began_anew = self.steps and step < self.steps[-1][0]
        return (known,) if began_anew else (*self.steps[-KEPT_STEPS:], known)

    @property
    def first(self) -> HeartbeatRecord:
        """What rank 0 said last."""
        return self.look.pulses.get(0, {})

    @property
    def doing(self) -> str:
        """Name what rank 0 does, for people; a script that runs its own code between two phases prepares."""
        phase = phase_shown(self.first)
        return PREPARING if phase == phases.STARTING and self.has_begun else phase

    @property
    def step(self) -> int:
        """The number of steps that are done."""
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
        """How many steps there will be, if the script has said so."""
        return max(0, int(self.first.get("steps") or 0)) or None

    @property
    def seconds_left(self) -> float | None:
        """How long the steps that are left will take."""
        each = self.seconds_per_step
        return None if self.total is None or each is None else max(0, self.total - self.step) * each

    def tokens_per_second(self, world_size: int) -> float | None:
        """What goes forward on all ranks; None if the model does not take `input_ids`."""
        if len(self.steps) < 2 or not self.steps[-1][2]:
            return None
        (_, began, before), (_, ended, after) = self.steps[0], self.steps[-1]
        return (after - before) / (ended - began) * world_size if ended > began and after > before else None

    def patience(self, least: float = STEP_PATIENCE_SECONDS) -> float:
        """How long no rank need say anything before that is a stall, in seconds."""
        current = {str(pulse.get("phase")) for pulse in self.look.pulses.values()}
        each = self.seconds_per_step
        if current - set(phases.STEPS):
            return least * max(PATIENCE.get(phase, LONG_PATIENCE) for phase in current)
        return least * LONG_PATIENCE if each is None else max(least, STEP_PATIENCE_FACTOR * each)

    def stalled_seconds(self, now: float, least: float = STEP_PATIENCE_SECONDS) -> float | None:
        """How long nothing has moved, if that is too long; None for a job that never says anything."""
        if not self.look.pulses or (_says_nothing_more(self.look.pulses) and self.computed is None):
            return None
        silent = now - self.moved
        return silent if silent > self.patience(least) else None


def _says_nothing_more(pulses: Mapping[int, HeartbeatRecord]) -> bool:
    """Whether all ranks run code of which nothing is known: then only what they compute is a sign of life."""
    return all(pulse.get("phase") == phases.STARTING for pulse in pulses.values())


def no_progress(now: float) -> Progress:
    """Begin with nothing known."""
    return Progress(Snapshot(now, {}), now, now)


def phase_shown(pulse: HeartbeatRecord) -> str:
    """Name a phase for people: what happens before the first step ends is the first of its kind."""
    phase = str(pulse.get("phase") or phases.STARTING)
    first = not pulse.get("step") and phase in (phases.FORWARD, phases.BACKWARD, phases.STEPPING)
    return f"first {phase}" if first else phase


def progress_line(course: Progress, world_size: int, rss_bytes: int | None, width: int) -> str:
    """Write one line with a bar, no wider than `width`."""
    phase, total = course.first.get("phase"), course.total
    if course.step == 0:
        doing = course.doing if course.look.pulses else "starting the ranks"
        return f"[{' ' * CELLS}] {doing} {clock(course.look.time - course.phase_began)}"[:width]
    line = _bar(min(1.0, course.step / total)) + f"{course.step}/{total}" if total else f"step {course.step}"
    quiet = course.look.time - course.moved
    for part in (
        *([str(phase)] if phase in (phases.SAVING, phases.EVALUATING, phases.EXITING) else []),
        *([f"nothing new for {clock(quiet)}"] if quiet >= QUIET_SECONDS else []),
        *_figures(course, world_size, rss_bytes),
    ):
        if len(line) + 2 + len(part) > width:
            break
        line += f"  {part}"
    return line[:width]


def _figures(course: Progress, world_size: int, rss_bytes: int | None) -> list[str]:
    """List what is known, what matters most first: a narrow terminal cuts the rest."""
    pulse, tokens = course.first, course.tokens_per_second(world_size)
    left, each = course.seconds_left, course.seconds_per_step
    speed = f"{_thousands(tokens)} tok/s" if tokens else f"{brief(each)}/step" if each is not None else ""
    loss, rate = (pulse.get(name) for name in ("loss", "learning_rate"))
    return [
        *([f"{clock(left)} left"] if left and pulse.get("phase") != phases.EXITING else []),
        *([f"loss {_number(loss)}"] if isinstance(loss, int | float) else []),
        *([f"lr {rate:.2g}"] if isinstance(rate, int | float) else []),
        *([speed] if speed else []),
        *([f"{rss_bytes / (1 << 30):.1f} GiB a rank"] if rss_bytes else []),
    ]


def _bar(done: float) -> str:
    full = math.floor(done * CELLS)
    return f"[{'=' * full}{'>' if full < CELLS else ''}{' ' * (CELLS - full - 1)}] "


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else str(value)


def _thousands(value: float) -> str:
    return f"{value / 1000:.1f}k" if value >= 1000 else f"{value:.0f}"


def plain_line(course: Progress, world_size: int) -> str:
    """Write how far a job is for a log file."""
    of = f" of {course.total}" if course.total else ""
    return ", ".join([f"step {course.step}{of}", *_figures(course, world_size, None)])


def loss_line(pulse: HeartbeatRecord) -> str | None:
    """Write how far the loss fell; None where nobody told of one."""
    first, last = pulse.get("first_loss"), pulse.get("loss")
    if not (isinstance(first, int | float) and isinstance(last, int | float)):
        return None
    fell = _number(last) if first == last else f"{_number(first)} -> {_number(last)}"
    return f"loss {fell} at step {pulse.get('loss_step')}"
