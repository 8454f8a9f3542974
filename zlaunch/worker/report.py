"""Report progress from training programs that use neither a Trainer nor a DeepSpeed engine.

    from zlaunch.worker.report import report
    report(step=12, steps=1000, loss=2.31)

Without zlaunch the call does nothing.
"""

import contextlib
from typing import SupportsFloat

from zlaunch.rundir import phases
from zlaunch.worker.hook.heartbeat import current_heartbeat


def report(step: int, steps: int | None = None, **numbers: SupportsFloat) -> None:
    """Report a finished step, counted from 1; the planned number of steps; `loss`, `learning_rate`.

    A number may be a tensor of one element, or anything else that `float` takes; others are ignored.
    """
    heartbeat = current_heartbeat()
    if heartbeat is None:
        return
    facts: dict[str, float] = {}
    for name, number in numbers.items():
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            facts[name] = float(number)
    if heartbeat.counts_steps:
        heartbeat.counts_steps = False
        heartbeat.register_exit()
    if steps is not None:
        facts["steps"] = int(steps)
    phase = heartbeat.phase
    if phase == phases.STARTING:
        phase = phases.TRAINING
    heartbeat.enter(phase, step=int(step), **facts)
