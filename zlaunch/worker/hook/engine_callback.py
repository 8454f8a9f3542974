"""What DeepSpeed's engine tells of its course, without a change to the script."""

import sys
import time
from typing import Any

from zlaunch.rundir import phases
from zlaunch.worker.hook.heartbeat import Heartbeat

GPU_SECONDS = 5.0
"""How often the GPU is asked for a loss and for its peaks: it must finish what it does to answer."""


class EngineFacts:
    """Reads facts off an engine around its phases; raises nothing."""

    def __init__(self, pulse: Heartbeat) -> None:
        """Begin with nothing known."""
        self._pulse = pulse
        self._loss: Any = None
        self._asked = 0.0

    def before(self, phase: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Read what goes into a phase."""
        try:
            if phase == phases.FORWARD:
                return self._tokens(args, kwargs)
            if phase == phases.BACKWARD and self._pulse.counts_steps:
                loss = args[1] if len(args) > 1 else kwargs.get("loss")
                self._loss = loss.detach() if loss is not None and loss.numel() == 1 else None
        except Exception:  # noqa: BLE001 - a surprise here must not reach the script
            return {}
        return {}

    def after(self, phase: str, args: tuple[Any, ...]) -> dict[str, Any]:
        """Read what a phase has changed; the first argument is the engine."""
        try:
            stepped = phase == phases.STEPPING or (
                phase == phases.TRAINING and hasattr(args[0], "train_batch")
            )
            return self._stepped(args[0]) if stepped else {}
        except Exception:  # noqa: BLE001 - a surprise here must not reach the script
            return {}

    def _tokens(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Count what goes forward; the shape is known without asking the device."""
        ids = kwargs.get("input_ids")
        if ids is None and len(args) > 1:
            ids = args[1].get("input_ids") if hasattr(args[1], "get") else args[1]
        if ids is None or ids.is_floating_point() or ids.dim() != 2:
            return {}
        return {"tokens": (self._pulse.get("tokens") or 0) + ids.numel()}

    def _stepped(self, engine: Any) -> dict[str, Any]:
        facts: dict[str, Any] = {}
        if (skipped := getattr(engine, "skipped_steps", None)) is not None:
            facts["skipped_steps"] = int(skipped)
        if engine.fp16_enabled():
            facts["loss_scale"] = getattr(engine.optimizer, "cur_scale", None)
        now = time.monotonic()
        asks = now - self._asked > GPU_SECONDS
        if self._pulse.counts_steps:
            facts |= {"step": engine.global_steps, **_rate(engine), **self._loss_now(asks)}
        if asks:
            self._asked = now
            facts |= _gpu_peaks()
        return facts

    def _loss_now(self, asks: bool) -> dict[str, Any]:
        loss, self._loss = self._loss, None
        return {"loss": float(loss)} if loss is not None and (asks or loss.device.type == "cpu") else {}


def _rate(engine: Any) -> dict[str, float]:
    groups = getattr(engine.optimizer, "param_groups", None)
    rate = groups[0].get("lr") if groups else None
    return {"learning_rate": rate} if isinstance(rate, int | float) else {}


def _gpu_peaks() -> dict[str, int]:
    """Ask torch's allocator for its peaks, in bytes; nothing where there is no GPU."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return {}
    return {
        "gpu_allocated_bytes": cuda.max_memory_allocated(),
        "gpu_reserved_bytes": cuda.max_memory_reserved(),
    }
