"""What a transformers Trainer tells of its course, without a change to the script."""

from typing import Any

from zlaunch.rundir import phases
from zlaunch.worker.hook.heartbeat import Heartbeat

NUMBERS = ("loss", "learning_rate", "grad_norm", "epoch")


def make_callback(base: type, pulse: Heartbeat) -> type:
    """Make a TrainerCallback that writes steps, loss and learning rate into a pulse."""

    class PulseCallback(base):  # type: ignore[misc]
        """Written by zlaunch's watch; changes nothing."""

        def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            pulse.counts_steps = False
            pulse.enter(phases.TRAINING)
            first = {"first_step": state.global_step, "first_loss": None}
            pulse.note(step=state.global_step, steps=state.max_steps, trained=False, **first)

        def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            pulse.note(step=state.global_step)

        def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
            named = {name: logs[name] for name in NUMBERS if isinstance((logs or {}).get(name), int | float)}
            pulse.note(step=state.global_step, **named)

        def on_train_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            pulse.note(step=state.global_step, trained=True)

    return PulseCallback
