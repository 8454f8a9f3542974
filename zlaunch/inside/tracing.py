"""Knowing the phase: functions of torch, transformers and DeepSpeed, wrapped when their modules come.

A module is wrapped right after it was executed, so that nothing is imported that the script does
not import. A wrapped function says where the process is, and is otherwise the same.
"""

import functools
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from zlaunch import phases
from zlaunch.inside.pulse import Pulse

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_ENGINE = "deepspeed.runtime.engine"
_TRAINER = "transformers.trainer"

WRAPPED: dict[str, dict[str, str]] = {
    "torch": {},
    "datasets": {},
    "transformers": {},
    "deepspeed": {},
    "torch.distributed.distributed_c10d": {"init_process_group": phases.JOINING},
    "torch.utils.cpp_extension": {"_jit_compile": phases.BUILDING},
    "transformers.modeling_utils": {"PreTrainedModel.from_pretrained": phases.LOADING},
    _ENGINE: {
        "DeepSpeedEngine.__init__": phases.INITIALIZING,
        "DeepSpeedEngine.forward": phases.FORWARD,
        "DeepSpeedEngine.backward": phases.BACKWARD,
        "DeepSpeedEngine.step": phases.STEPPING,
        "DeepSpeedEngine.save_checkpoint": phases.SAVING,
        "DeepSpeedEngine.load_checkpoint": phases.RESUMING,
    },
    _TRAINER: {
        "Trainer.evaluate": phases.EVALUATING,
        "Trainer.predict": phases.EVALUATING,
        "Trainer.save_model": phases.SAVING,
        "Trainer._save_checkpoint": phases.SAVING,
    },
}
"""Module → function in it → the phase it is. A module that only takes long to import has none."""

GPU_SECONDS = 5.0
"""How often the allocator of torch is asked for its peaks."""


class Tracer:
    """Wraps the functions of the table as their modules come."""

    def __init__(self, pulse: Pulse) -> None:
        """Nothing is wrapped before `install`."""
        self._pulse = pulse
        self._raised = (0, "")
        self._asked_gpu = 0.0
        self._looking = False

    def install(self) -> None:
        """Be asked first for every module that is imported."""
        sys.meta_path.insert(0, self)

    def phase_of(self, error: BaseException) -> str:
        """Name the phase in which an exception was raised."""
        return self._raised[1] if self._raised[0] == id(error) else self._pulse.phase

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> "ModuleSpec | None":
        """Let the others find a module of the table, and wrap it once it was executed."""
        if fullname not in WRAPPED or self._looking:
            return None
        self._looking = True
        try:
            others = (
                finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self
            )
            spec = next((found for found in others if found is not None), None)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = functools.partial(self._execute, execute)  # type: ignore[method-assign]
        return spec

    def _execute(self, execute: Callable[[ModuleType], None], module: ModuleType) -> None:
        outer = self._pulse.enter(phases.IMPORTING)
        execute(module)
        self._pulse.enter(outer)
        for path, phase in WRAPPED[module.__name__].items():
            owner, name = module, path
            if "." in path:
                holder, name = path.split(".")
                owner = getattr(module, holder, None)  # type: ignore[assignment]
            function = vars(owner).get(name) if owner is not None else None
            if function is not None:
                setattr(owner, name, self._wrapped(function, phase))
        if module.__name__ == _TRAINER:
            self._attend_trainers(module)

    def _attend_trainers(self, module: ModuleType) -> None:
        from zlaunch.inside.trainer import make_callback

        module.DEFAULT_CALLBACKS.append(make_callback(module.TrainerCallback, self._pulse))

    def _wrapped(self, function: Any, phase: str) -> Any:
        if isinstance(function, classmethod):
            return classmethod(self._wrapped(function.__func__, phase))
        after = {phases.STEPPING: self._stepped, phases.INITIALIZING: self._initialized}.get(phase)
        before = self._tokens if phase == phases.FORWARD else None
        pulse = self._pulse

        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            outer = pulse.enter(phase)
            try:
                if before is not None:
                    before(kwargs)
                result = function(*args, **kwargs)
            except BaseException as error:
                if self._raised[0] != id(error):
                    self._raised = (id(error), phase)
                pulse.enter(outer)
                raise
            if after is not None:
                after(args[0])
            pulse.enter(outer)
            return result

        return traced

    def _tokens(self, inputs: dict[str, Any]) -> None:
        """Count what goes forward; the shape is known without asking the device."""
        ids = inputs.get("input_ids")
        if ids is not None and hasattr(ids, "numel"):
            self._pulse.note(tokens=(self._pulse.get("tokens") or 0) + ids.numel())

    def _initialized(self, _engine: Any) -> None:
        self._pulse.heed_exit()

    def _stepped(self, engine: Any) -> None:
        facts: dict[str, Any] = {"skipped_steps": getattr(engine, "skipped_steps", None)}
        if self._pulse.counts_steps:
            facts["step"] = getattr(engine, "global_steps", None)
        if getattr(engine, "fp16_enabled", lambda: False)() is True:
            facts["loss_scale"] = getattr(getattr(engine, "optimizer", None), "cur_scale", None)
        if time.monotonic() - self._asked_gpu > GPU_SECONDS:
            self._asked_gpu = time.monotonic()
            facts |= _gpu_peaks()
        self._pulse.note(**facts)


def _gpu_peaks() -> dict[str, int]:
    """Ask torch's allocator for its peaks, in bytes; nothing where there is no GPU."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return {}
    return {
        "gpu_allocated_bytes": cuda.max_memory_allocated(),
        "gpu_reserved_bytes": cuda.max_memory_reserved(),
    }
