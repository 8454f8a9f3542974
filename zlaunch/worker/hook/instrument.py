"""Knowing the phase: functions of torch, transformers and DeepSpeed, wrapped when their modules come.

A module is wrapped right after it was executed, so that nothing is imported that the script does
not import. A wrapped function says where the process is, and is otherwise the same: it is in no
traceback, and a warning with a `stacklevel` names the line that it names without zlaunch.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, cast

from zlaunch.rundir import phases
from zlaunch.worker.hook.engine_callback import EngineFacts
from zlaunch.worker.hook.heartbeat import Heartbeat

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_ENGINE = "deepspeed.runtime.engine"
_PIPELINE = "deepspeed.runtime.pipe.engine"
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
    _PIPELINE: {
        "PipelineEngine.train_batch": phases.TRAINING,
        "PipelineEngine.eval_batch": phases.EVALUATING,
    },
    _TRAINER: {
        "Trainer.evaluate": phases.EVALUATING,
        "Trainer.predict": phases.EVALUATING,
        "Trainer.save_model": phases.SAVING,
        "Trainer._save_checkpoint": phases.SAVING,
    },
}
"""Module → function in it → the phase it is. A module that only takes long to import has none."""

WITHIN = (phases.EVALUATING, phases.SAVING, phases.RESUMING)
"""Phases that stay what they are, whatever they call."""

RAISED_IN = "__zlaunch_phase__"
"""Where an exception keeps its phase: whoever kept the exception instead would keep its tensors, too."""

UNSEEN = "<zlaunch/worker/hook/instrument.py, like importlib._bootstrap>"
"""The file that wrappers say they are in: Python's warnings pass over frames with these two words in it."""


class Instrumentation:
    """Wraps the functions of the table as their modules come."""

    def __init__(
        self, pulse: Heartbeat, also: Mapping[str, Callable[[ModuleType], None]] | None = None
    ) -> None:
        """Nothing is wrapped before `install`; `also` says what else is done to a module of the table."""
        self._pulse = pulse
        self._also = also or {}
        self._engine = EngineFacts(pulse)
        self._looking = False

    def install(self) -> None:
        """Be asked first for every module that is imported; wrap those that are there already."""
        sys.meta_path.insert(0, cast("Any", self))
        for name in WRAPPED:
            if name in sys.modules:
                self._wrap(sys.modules[name])

    def phase_of(self, error: BaseException) -> str:
        """Name the phase in which an exception was raised."""
        return str(vars(error).get(RAISED_IN, self._pulse.phase))

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
        loader = None if spec is None else spec.loader
        with contextlib.suppress(AttributeError):  # of a loader of another kind: it is left alone
            execute = loader.exec_module  # type: ignore[union-attr]
            loader.exec_module = self._traced_execution(loader, execute)  # type: ignore[union-attr, method-assign]
        return spec

    def _traced_execution(
        self, loader: Any, execute: Callable[[ModuleType], None]
    ) -> Callable[[ModuleType], None]:
        pulse = self._pulse

        def execution(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)
            outer = pulse.enter(phases.IMPORTING)
            try:
                execute(module)
            except BaseException as error:
                pulse.enter(outer)
                error.__traceback__ = _without_first(error)
                raise
            pulse.enter(outer)
            self._wrap(module)

        return _unseen(execution)

    def _wrap(self, module: ModuleType) -> None:
        with contextlib.suppress(Exception):
            for path, phase in WRAPPED.get(module.__name__, {}).items():
                *holder, name = path.split(".")
                owner: Any = functools.reduce(getattr, holder, module)
                if (function := vars(owner).get(name)) is not None:
                    setattr(owner, name, self._wrapped(function, phase))
            if module.__name__ == _TRAINER:
                self._attend_trainers(module)
            if module.__name__ in self._also:
                self._also[module.__name__](module)

    def _attend_trainers(self, module: ModuleType) -> None:
        from zlaunch.worker.hook.trainer_callback import make_callback

        module.DEFAULT_CALLBACKS.append(make_callback(module.TrainerCallback, self._pulse))

    def _wrapped(self, function: Any, phase: str) -> Any:
        if isinstance(function, classmethod):
            return classmethod(self._wrapped(function.__func__, phase))
        begin, done, failed = self._begin, self._done, self._failed  # fewer look-ups in each call

        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            outer = begin(phase, args, kwargs)
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                failed(outer, error)
                error.__traceback__ = _without_first(error)
                raise  # without an argument: that adds no frame
            done(phase, outer, args)
            return result

        return _unseen(traced)

    def _begin(self, phase: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Enter a phase; return the one it is in, or None where nobody is to be told."""
        if not self._pulse.is_here():
            return None
        outer = self._pulse.phase
        within = outer in WITHIN
        facts = {} if within else self._engine.before(phase, args, kwargs)
        self._pulse.enter(outer if within else phase, **facts)
        return outer

    def _done(self, phase: str, outer: str | None, args: tuple[Any, ...]) -> None:
        if outer is None:
            return
        if phase == phases.INITIALIZING:
            self._pulse.heed_exit()
        facts = {} if outer in WITHIN else self._engine.after(phase, args)
        self._pulse.enter(_following(phase, outer), **facts)

    def _failed(self, outer: str | None, error: BaseException) -> None:
        if outer is None:
            return
        vars(error).setdefault(RAISED_IN, self._pulse.phase)
        self._pulse.enter(outer)


def _following(phase: str, outer: str) -> str:
    """Name what a script does after a phase: once it has stepped, it is training."""
    return phases.TRAINING if outer == phases.STARTING and phase in phases.STEPS else outer


def _without_first(error: BaseException) -> Any:
    return error.__traceback__ and error.__traceback__.tb_next


def _unseen(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a wrapper be passed over where Python looks for the line that a warning is about."""
    made = cast("FunctionType", function)
    made.__code__ = made.__code__.replace(co_filename=UNSEEN)
    return function
