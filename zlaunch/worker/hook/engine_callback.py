"""Read the progress of a DeepSpeed engine, without a change to the script."""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from zlaunch.rundir import phases
from zlaunch.worker.hook.heartbeat import Heartbeat

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from torch import Tensor

GPU_SECONDS = 5.0
"""How often loss and peak memory are read from the GPU, which has to synchronize for that."""


class EngineFacts:
    """Reads facts from an engine before and after its phases; raises nothing."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._loss: Tensor | None = None
        self._tokens = 0
        self._asked = 0.0

    def before(self, phase: str, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Read the inputs of a phase."""
        try:
            if phase == phases.FORWARD:
                return self._count_tokens(args, kwargs)
            if phase in (phases.STEPPING, phases.TRAINING) and self._heartbeat.get("first_step") is None:
                return {"first_step": cast("DeepSpeedEngine", args[0]).global_steps}
            if phase == phases.BACKWARD:
                self._remember_loss(args, kwargs)
        except Exception:  # noqa: BLE001 - a surprise here must not reach the script
            return {}
        return {}

    def after(self, phase: str, args: Sequence[object]) -> dict[str, object]:
        """Read the results of a phase; the first argument is the engine."""
        try:
            is_pipeline = phase == phases.TRAINING and hasattr(args[0], "train_batch")
            if phase == phases.STEPPING or is_pipeline:
                return self._stepped(cast("DeepSpeedEngine", args[0]))
        except Exception:  # noqa: BLE001 - a surprise here must not reach the script
            return {}
        return {}

    def _remember_loss(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        given = kwargs.get("loss")
        if len(args) > 1:
            given = args[1]
        loss = cast("Tensor | None", given)
        self._loss = None
        if loss is not None and loss.numel() == 1:
            self._loss = loss.detach()

    def _count_tokens(self, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Count the tokens of a forward pass; reading a shape needs no synchronization."""
        inputs = kwargs.get("input_ids")
        if inputs is None and len(args) > 1:
            inputs = args[1]
            if hasattr(inputs, "get"):
                inputs = inputs.get("input_ids")
        ids = cast("Tensor | None", inputs)
        if ids is None or ids.is_floating_point() or ids.dim() != 2:
            return {}
        self._tokens += ids.numel()
        return {"tokens": self._tokens}

    def _stepped(self, engine: "DeepSpeedEngine") -> dict[str, object]:
        facts: dict[str, object] = {}
        if (skipped := getattr(engine, "skipped_steps", None)) is not None:
            facts["skipped_steps"] = int(skipped)
        if engine.fp16_enabled():
            facts["loss_scale"] = getattr(engine.optimizer, "cur_scale", None)
        now = time.monotonic()
        asks = now - self._asked > GPU_SECONDS
        step, loss = engine.global_steps, self._loss_now(asks)
        if loss is not None:  # a Trainer leaves losses that are NaN out of its logs
            facts |= {"step_loss": loss, "seen_loss_step": step}
        if self._heartbeat.counts_steps:
            facts |= {"step": step, **_rate(engine)}
            if loss is not None:
                facts["loss"] = loss
        if asks:
            self._asked = now
            facts |= _gpu_peaks()
        return facts

    def _loss_now(self, asks: bool) -> float | None:
        loss, self._loss = self._loss, None
        if loss is not None and (asks or loss.device.type == "cpu"):
            return float(loss)
        return None


def _rate(engine: "DeepSpeedEngine") -> dict[str, float]:
    groups = getattr(engine.optimizer, "param_groups", None)
    if groups and isinstance(rate := groups[0].get("lr"), int | float):
        return {"learning_rate": rate}
    return {}


def _gpu_peaks() -> dict[str, int]:
    """Read the peaks of torch's allocator, in bytes; nothing without a GPU."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return {}
    return {
        "gpu_allocated_bytes": cuda.max_memory_allocated(),
        "gpu_reserved_bytes": cuda.max_memory_reserved(),
    }
