"""For training programs without a Trainer or a DeepSpeed engine: tell the watch how far it is.

    from zlaunch.worker.report import report
    report(step=12, steps=1000, loss=2.31)

Where no zlaunch watches, the call does nothing.
"""

import contextlib
from typing import SupportsFloat

from zlaunch.rundir import phases
from zlaunch.worker.hook.heartbeat import current_heartbeat


def report(step: int, steps: int | None = None, **numbers: SupportsFloat) -> None:
    """Say that a step is done: its number from 1, how many there will be; `loss`, `learning_rate`.

    A number may be a tensor of one element, or whatever else `float` takes; anything else is left out.
    """
    pulse = current_heartbeat()
    if pulse is None:
        return
    facts: dict[str, float] = {}
    for name, number in numbers.items():
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            facts[name] = float(number)
    if pulse.counts_steps:
        pulse.counts_steps = False
        pulse.heed_exit()
    total = {} if steps is None else {"steps": int(steps)}
    phase = phases.TRAINING if pulse.phase == phases.STARTING else pulse.phase
    pulse.enter(phase, step=int(step), **total, **facts)
