"""For training programs without a Trainer or a DeepSpeed engine: tell the watch how far it is.

    from zlaunch.report import report
    report(step=12, steps=1000, loss=2.31)

Where no zlaunch watches, the call does nothing.
"""

from zlaunch import phases
from zlaunch.inside.pulse import current_pulse


def report(step: int, steps: int | None = None, **numbers: float) -> None:
    """Say that a step is done: its number from 1, how many there will be; `loss`, `learning_rate`."""
    pulse = current_pulse()
    if pulse is None:
        return
    pulse.counts_steps = False
    if pulse.phase == phases.STARTING:
        pulse.enter(phases.TRAINING)
    pulse.note(step=step, **({} if steps is None else {"steps": steps}), **numbers)
