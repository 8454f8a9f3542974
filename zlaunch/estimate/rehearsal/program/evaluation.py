"""The evaluation of a Trainer, which follows on a step."""

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import transformers


def running_trainer() -> Any:
    """Return the Trainer whose training is running; None if it does not evaluate while it trains."""
    trainer = next(_trainers(), None)
    if trainer is None or trainer.eval_dataset is None:
        return None
    strategy = getattr(trainer.args, "eval_strategy", None) or getattr(
        trainer.args, "evaluation_strategy", "no"
    )
    if str(getattr(strategy, "value", strategy)) == "no":
        return None
    return trainer


def keeps_predictions(trainer: Any) -> bool:
    """Whether it keeps those of all batches on the GPU."""
    is_loss_only = trainer.compute_metrics is None or trainer.args.prediction_loss_only
    return not is_loss_only and trainer.args.eval_accumulation_steps is None


def _trainers() -> Iterator[Any]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if isinstance(found := frame.f_locals.get("self"), transformers.Trainer):
            yield found
        frame = frame.f_back
