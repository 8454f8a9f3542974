"""Read the progress of a transformers Trainer, without a change to the script."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from zlaunch.rundir import phases
from zlaunch.worker.hook.heartbeat import Heartbeat
from zlaunch.worker.hook.program_record import ProgramRecorder
from zlaunch.worker.hook.save_request import SaveRequest

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

NUMBERS = ("loss", "eval_loss", "learning_rate", "grad_norm", "epoch")


def make_callback(
    base: type,
    heartbeat: Heartbeat,
    program: ProgramRecorder,
    request: SaveRequest,
    unread_loss: Callable[[], Mapping[str, object]],
) -> type:
    """Make a TrainerCallback class that writes steps, loss and learning rate to a heartbeat.

    It also has the Trainer save and stop if that is asked for. `unread_loss` reads that of the last step,
    which needs no waiting after the Trainer has read its own.
    """

    class HeartbeatCallback(base):  # type: ignore[misc]
        """Belongs to zlaunch; changes nothing unless it is asked to save."""

        def on_train_begin(
            self, args: "TrainingArguments", state: "TrainerState", _control: object, **_: object
        ) -> None:
            program.trainer_args(args)
            heartbeat.counts_steps = False
            heartbeat.is_trainer = True
            heartbeat.enter(phases.TRAINING)
            first = {"first_step": state.global_step, "first_loss": None}
            heartbeat.note(step=state.global_step, steps=state.max_steps, trained=False, **first)

        def on_step_end(
            self, args: "TrainingArguments", state: "TrainerState", control: "TrainerControl", **_: object
        ) -> None:
            heartbeat.note(step=state.global_step)
            if request.at(state.global_step) is not None:
                heartbeat.note(saves_step=state.global_step)
                control.should_save = control.should_training_stop = True
                control.should_evaluate = False  # there may be no time for it
                args.save_only_model = False  # nothing could resume from that

        def on_log(
            self,
            _args: object,
            state: "TrainerState",
            _control: object,
            logs: Mapping[str, object] | None = None,
            **_: object,
        ) -> None:
            logs = logs or {}
            named = {name: logs[name] for name in NUMBERS if isinstance(logs.get(name), int | float)}
            heartbeat.note(step=state.global_step, **named, **unread_loss())

        def on_train_end(self, _args: object, state: "TrainerState", _control: object, **_: object) -> None:
            heartbeat.note(step=state.global_step, trained=True)

    return HeartbeatCallback
