"""How far a job is, how fast it goes, and whether it still moves: a function of what its ranks said."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from zlaunch import phases
from zlaunch.units import brief, clock

KEPT_STEPS = 50
"""How many of the last steps count for the speed."""

STEP_PATIENCE_SECONDS = 60.0
STEP_PATIENCE_FACTOR = 5.0
"""A step may take this many times as long as the median of those before it."""

PATIENCE = {phases.JOINING: 300.0}
"""Phase → how long it may take without a sign of life, in seconds."""
LONG_PATIENCE_SECONDS = 1800.0
"""For all others outside of a step: loading and saving take their time."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the ranks said last, at one moment."""

    time: float
    pulses: Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Course:
    """What was learnt from all looks so far."""

    look: Look
    moved: float
    """When a rank last said anything new."""
    steps: tuple[tuple[int, float, int], ...] = ()
    """Step, the moment it was reached, tokens that had gone forward on rank 0; the last ones."""

    def after(self, look: Look) -> "Course":
        """Take in another look."""
        told = {rank: pulse.get("time") for rank, pulse in self.look.pulses.items()}
        news = any(told.get(rank) != pulse.get("time") for rank, pulse in look.pulses.items())
        moved = look.time if news else self.moved
        return replace(self, look=look, moved=moved, steps=self._steps_with(look))

    def _steps_with(self, look: Look) -> tuple[tuple[int, float, int], ...]:
        pulse = look.pulses.get(0, {})
        step = int(pulse.get("step") or 0)
        if step < 1 or (self.steps and self.steps[-1][0] >= step):
            return self.steps
        return (*self.steps[-KEPT_STEPS:], (step, float(pulse["time"]), int(pulse.get("tokens") or 0)))

    @property
    def first(self) -> Mapping[str, Any]:
        """What rank 0 said last."""
        return self.look.pulses.get(0, {})

    @property
    def step(self) -> int:
        """The number of steps that are done."""
        return int(self.first.get("step") or 0)

    @property
    def seconds_per_step(self) -> float | None:
        """The median over the last steps."""
        pairs = list(zip(self.steps, self.steps[1:], strict=False))
        return statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs) if pairs else None

    @property
    def seconds_left(self) -> float | None:
        """How long the steps that are left will take."""
        total, each = self.first.get("steps"), self.seconds_per_step
        return None if not total or each is None else max(0, int(total) - self.step) * each

    def tokens_per_second(self, world_size: int) -> float | None:
        """What goes forward on all ranks; None if the model does not take `input_ids`."""
        if len(self.steps) < 2 or not self.steps[-1][2]:
            return None
        (_, began, before), (_, ended, after) = self.steps[0], self.steps[-1]
        return (after - before) / (ended - began) * world_size if ended > began else None

    def patience(self, least: float = STEP_PATIENCE_SECONDS) -> float:
        """How long no rank need say anything before that is a stall, in seconds."""
        current = {str(pulse.get("phase")) for pulse in self.look.pulses.values()}
        if current - set(phases.STEPS):
            return max(PATIENCE.get(phase, LONG_PATIENCE_SECONDS) for phase in current)
        each = self.seconds_per_step
        return LONG_PATIENCE_SECONDS if each is None else max(least, STEP_PATIENCE_FACTOR * each)

    def stalled_seconds(self, now: float, least: float = STEP_PATIENCE_SECONDS) -> float | None:
        """How long nothing has moved, if that is too long; None for a job that never says anything."""
        silent = now - self.moved
        return silent if self.look.pulses and silent > self.patience(least) else None


def begun(now: float) -> Course:
    """Begin with nothing known."""
    return Course(Look(now, {}), now)


def phase_shown(pulse: Mapping[str, Any]) -> str:
    """Name a phase for people: what happens before the first step ends is the first of its kind."""
    phase = str(pulse.get("phase") or phases.STARTING)
    first = not pulse.get("step") and phase in (phases.FORWARD, phases.BACKWARD, phases.STEPPING)
    return f"first {phase}" if first else phase


def progress_line(course: Course, world_size: int, rss_bytes: int | None, width: int) -> str:
    """Write one line with a bar, no wider than `width`."""
    pulse = course.first
    if course.step == 0:
        since = course.look.time - float(pulse.get("since") or course.look.time)
        return f"[{' ' * 20}] {phase_shown(pulse)} {clock(since)}"[:width]
    total = pulse.get("steps")
    done = min(1.0, course.step / total) if total else None
    head = [f"{course.step}/{total}" if total else f"step {course.step}"]
    if pulse.get("phase") in (phases.SAVING, phases.EVALUATING, phases.EXITING):
        head.append(str(pulse["phase"]))
    bar = "" if done is None else _bar(done)
    return (bar + "  ".join([*head, *_figures(course, world_size, rss_bytes)]))[:width]


def _figures(course: Course, world_size: int, rss_bytes: int | None) -> list[str]:
    """List what is known, what matters most first: a narrow terminal cuts the rest."""
    pulse, tokens = course.first, course.tokens_per_second(world_size)
    left, each = course.seconds_left, course.seconds_per_step
    speed = f"{_thousands(tokens)} tok/s" if tokens else f"{brief(each)}/step" if each is not None else ""
    return [
        *([f"{clock(left)} left"] if left is not None else []),
        *([f"loss {_number(pulse['loss'])}"] if pulse.get("loss") is not None else []),
        *([f"lr {pulse['learning_rate']:.2g}"] if pulse.get("learning_rate") is not None else []),
        *([speed] if speed else []),
        *([f"{rss_bytes / (1 << 30):.1f} GiB a rank"] if rss_bytes else []),
    ]


def _bar(done: float, cells: int = 12) -> str:
    full = math.floor(done * cells)
    return f"[{'=' * full}{'>' if full < cells else ''}{' ' * (cells - full - 1)}] "


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else str(value)


def _thousands(value: float) -> str:
    return f"{value / 1000:.1f}k" if value >= 1000 else f"{value:.0f}"


def plain_line(course: Course, world_size: int) -> str:
    """Write how far a job is for a log file."""
    total = course.first.get("steps")
    of = f" of {total}" if total else ""
    return ", ".join([f"step {course.step}{of}", *_figures(course, world_size, None)])
