"""What a finished run has achieved, in one sentence: steps, loss, speed, memory."""

import math
from collections.abc import Iterator
from typing import Final

from zlaunch.cli.views.progress import loss_number
from zlaunch.frozen import dataclass
from zlaunch.launch.monitoring.progress import KEPT_STEPS
from zlaunch.rundir.record import HeartbeatRecord, loss_of
from zlaunch.runs.memory import compare_with_forecast
from zlaunch.runs.run import Run
from zlaunch.runs.step_time import throughput_of
from zlaunch.units import memory, plural, rate, steps_text

TOKENS: Final = "tokens/s"
WINDOW: Final = f"last {KEPT_STEPS} steps"
"""Of which time a running job records its speed."""
_WITHOUT: Final = "without saving"


def achieved(run: Run) -> str:
    """List what is known; empty if the script reported no step."""
    return ", ".join(_parts(run))


def _parts(run: Run) -> Iterator[str]:
    first = run.heartbeats.get(0, HeartbeatRecord())
    step, begun = first.get("step", 0), first.get("first_step", 0)
    if not step:
        return
    yield steps_text(begun + 1, step) if begun else plural(step, "step")
    if loss := loss_text(first):
        yield loss
    if speed := mean_speed(run):
        yield f"{speed.text} {speed.unit}"
    yield from _memory(run)


def _memory(run: Run) -> Iterator[str]:
    measured = {pool.name: pool.measured for pool in compare_with_forecast(run).pools}
    for name, where in (("GPU, reserved", "GPU"), ("host, resident", "host")):
        if size := measured.get(name):
            yield f"at most {memory(size)} of {where} memory a rank"
            return


@dataclass(frozen=True, slots=True)
class TrainingSpeed:
    """How fast a run trains, on all ranks."""

    per_second: float
    unit: str
    span: str
    """Of which time this is the mean."""

    @property
    def text(self) -> str:
        """The number alone."""
        return rate(self.per_second)


def current_speed(run: Run) -> TrainingSpeed | None:
    """Return the tokens of the last steps while a run trains, otherwise its mean speed; None if unknown."""
    tokens = run.last_metrics.get("tokens_per_second")
    if tokens and not run.state.is_over:
        return TrainingSpeed(tokens, TOKENS, WINDOW)
    return mean_speed(run)


def mean_speed(run: Run) -> TrainingSpeed | None:
    """Return the mean of all timed steps, without saving and evaluating; None if too few were timed."""
    throughput = throughput_of(run)
    if throughput.tokens_per_second:
        return TrainingSpeed(throughput.tokens_per_second, TOKENS, _WITHOUT)
    if throughput.samples_per_second:
        return TrainingSpeed(throughput.samples_per_second, "samples/s", _WITHOUT)
    return None


def loss_text(heartbeat: HeartbeatRecord) -> str | None:
    """Write how far the loss fell, to a median of the end; None if the script reported none."""
    fall = loss_fall(heartbeat)
    if fall is None:
        return None
    return f"loss {fall}"


@dataclass(frozen=True, slots=True)
class LossFall:
    """How far the loss fell."""

    ends: str
    remark: str
    """What the second number is, if it is not the last loss."""

    def __str__(self) -> str:
        """Write both."""
        if not self.remark:
            return self.ends
        return f"{self.ends} ({self.remark})"


def loss_fall(heartbeat: HeartbeatRecord) -> LossFall | None:
    """Write the first loss and the last, or the median of the last ones; None if the script reported none."""
    first, last = heartbeat.get("first_loss"), loss_of(heartbeat)
    end, count = end_of_loss(heartbeat)
    if not isinstance(first, int | float) or end is None:
        return None
    if first == last:
        return LossFall(loss_number(first), "")
    ends = f"{loss_number(first)} -> {loss_number(end)}"
    if count > 1:
        return LossFall(ends, f"median of the last {count}")
    return LossFall(ends, "")


def end_of_loss(heartbeat: HeartbeatRecord) -> tuple[float | None, int]:
    """Return the median of the last losses, and how many they are; the last one if it is not finite."""
    last, count = loss_of(heartbeat), heartbeat.get("end_losses", 1)
    if not isinstance(last, int | float):
        return None, 0
    if count > 1 and math.isfinite(last):
        return heartbeat.get("end_loss", last), count
    return last, 1
