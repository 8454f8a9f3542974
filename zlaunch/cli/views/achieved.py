"""What a finished run has achieved, in one sentence: steps, loss, speed, memory."""

import math
from collections.abc import Iterator

from zlaunch.cli.views.progress import loss_number
from zlaunch.rundir.record import HeartbeatRecord
from zlaunch.runs.memory import compare_with_forecast
from zlaunch.runs.run import Run
from zlaunch.units import memory, plural, rate, steps_text


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
    time = run.step_time
    if time is not None and time.throughput.tokens_per_second:
        yield f"{rate(time.throughput.tokens_per_second)} tokens/s"
    elif time is not None and time.throughput.samples_per_second:
        yield f"{rate(time.throughput.samples_per_second)} samples/s"
    yield from _memory(run)


def _memory(run: Run) -> Iterator[str]:
    measured = {pool.name: pool.measured for pool in compare_with_forecast(run).pools}
    for name, where in (("GPU, reserved", "GPU"), ("host, resident", "host")):
        if size := measured.get(name):
            yield f"at most {memory(size)} of {where} memory a rank"
            return


def loss_text(heartbeat: HeartbeatRecord) -> str | None:
    """Write how far the loss fell, to a median of the end; None if the script reported none."""
    first, last = heartbeat.get("first_loss"), heartbeat.get("loss", heartbeat.get("step_loss"))
    if not (isinstance(first, int | float) and isinstance(last, int | float)):
        return None
    count = heartbeat.get("end_losses", 1)
    if first == last:
        return f"loss {loss_number(last)}"
    if count > 1 and math.isfinite(last):
        end = loss_number(heartbeat.get("end_loss", last))
        return f"loss {loss_number(first)} -> {end} (median of the last {count})"
    return f"loss {loss_number(first)} -> {loss_number(last)}"
