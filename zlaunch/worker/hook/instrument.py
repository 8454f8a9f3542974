"""Track the phase: wrap functions of torch, transformers and DeepSpeed when their modules are imported.

A module is wrapped right after it was executed, so nothing is imported that the script does not import. A
wrapper is invisible: it is in no traceback, and a warning with a `stacklevel` names the same line as without
zlaunch.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, cast

from zlaunch.rundir import phases
from zlaunch.worker.hook.engine_callback import EngineFacts
from zlaunch.worker.hook.engine_save import MODULES, EngineSaver
from zlaunch.worker.hook.heartbeat import Heartbeat
from zlaunch.worker.hook.imports import ImportWatch, unseen, without_first
from zlaunch.worker.hook.program_record import ProgramRecorder
from zlaunch.worker.hook.save_request import SaveRequest
from zlaunch.worker.hook.step_clock import PARTS
from zlaunch.worker.hook.step_profiler import StepProfiler

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

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
"""Module → function → phase. Modules without functions are listed because importing them takes long."""

WITHIN = (phases.EVALUATING, phases.SAVING, phases.RESUMING)
"""Phases that do not change while they call functions of other phases."""

RAISED_IN = "__zlaunch_phase__"
"""Attribute of an exception for its phase. Keeping the exception itself would keep its tensors alive."""


class Instrumentation:
    """Wraps the functions of the table when their modules are imported."""

    def __init__(
        self,
        heartbeat: Heartbeat,
        program: ProgramRecorder,
        request: SaveRequest,
        also: Mapping[str, Callable[[ModuleType], None]],
        profiler: StepProfiler | None,
    ) -> None:
        """`also`: module → what else to do with it."""
        self._heartbeat, self._program, self._request = heartbeat, program, request
        self._saver = EngineSaver(heartbeat, request)
        self._also = {**also, **dict.fromkeys(MODULES, self._saver.watch)}
        self._engine = EngineFacts(heartbeat, profiler)

    def install(self) -> None:
        """Wrap the functions of the table, now or when their modules are imported."""
        ImportWatch({*WRAPPED, *PARTS, *self._also}, self._wrap, self._importing).install()

    def _importing(self) -> Callable[[], object]:
        return functools.partial(self._heartbeat.enter, self._heartbeat.enter(phases.IMPORTING))

    def phase_of(self, error: BaseException) -> str:
        """Return the phase in which an exception was raised."""
        return str(vars(error).get(RAISED_IN, self._heartbeat.phase))

    def _wrap(self, module: ModuleType) -> None:
        for path, phase in WRAPPED.get(module.__name__, {}).items():
            *holder, name = path.split(".")
            owner: object = functools.reduce(getattr, holder, module)
            function = vars(owner).get(name)
            if isinstance(function, classmethod):
                setattr(owner, name, classmethod(self._wrapped(function.__func__, phase)))
            elif function is not None:
                setattr(owner, name, self._wrapped(function, phase))
        if module.__name__ in PARTS:
            self._heartbeat.clock.watch(module)
        if module.__name__ == _ENGINE:
            self._engine.watch(module.DeepSpeedEngine)
        if module.__name__ == _TRAINER:
            self._add_callback(module)
        if module.__name__ in self._also:
            self._also[module.__name__](module)

    def _add_callback(self, module: ModuleType) -> None:
        from zlaunch.worker.hook.trainer_callback import make_callback

        parts = (self._heartbeat, self._program, self._request, self._engine.unread_loss)
        callback = make_callback(module.TrainerCallback, *parts)
        module.DEFAULT_CALLBACKS.append(callback)

    def _wrapped(self, function: Callable[..., object], phase: str) -> Callable[..., object]:
        begin, done, failed = self._begin, self._done, self._failed  # fewer lookups per call
        before = after = None
        if phase in (phases.FORWARD, phases.TRAINING):
            before = self._saver.begins
        if phase in (phases.STEPPING, phases.TRAINING):
            after = self._saver.stepped

        @functools.wraps(function)
        def traced(*args: object, **kwargs: object) -> object:
            if before is not None:
                before()
            outer = begin(phase, args, kwargs)
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                failed(outer, error)
                error.__traceback__ = without_first(error)
                raise  # without an argument, so that no frame is added
            done(phase, outer, args, kwargs)
            if after is not None:
                after(args[0])
            return result

        return unseen(traced)

    def _begin(self, phase: str, args: Sequence[object], kwargs: Mapping[str, object]) -> str | None:
        """Enter a phase; return the outer one, or None in threads and forked processes."""
        if not self._heartbeat.is_here():
            return None
        outer = self._heartbeat.phase
        if outer in WITHIN:
            self._heartbeat.enter(outer)
        else:
            self._heartbeat.enter(phase, **self._engine.before(phase, args, kwargs))
        if phase == phases.FORWARD and self._engine.evaluates(args[0]):
            self._heartbeat.clock.enter_phase(phases.EVALUATING)  # in a loop of the script's own
        return outer

    def _done(
        self, phase: str, outer: str | None, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> None:
        if outer is None:
            return
        if phase == phases.INITIALIZING:
            self._heartbeat.register_exit()
            self._program.engine(cast("DeepSpeedEngine", args[0]))
        if phase == phases.SAVING:
            self._program.saved(args, kwargs, within=outer == phases.SAVING)
            if outer != phases.SAVING and hasattr(args[0], "save_checkpoint"):
                self._saver.saved(args, kwargs)
        facts: dict[str, object] = {}
        if outer not in WITHIN:
            facts = self._engine.after(phase, args)
        self._heartbeat.enter(_following(phase, outer), **facts)

    def _failed(self, outer: str | None, error: BaseException) -> None:
        if outer is None:
            return
        vars(error).setdefault(RAISED_IN, self._heartbeat.clock.phase)  # knows a pass of an evaluation
        self._heartbeat.enter(outer)


def _following(phase: str, outer: str) -> str:
    """Return the phase after one: once a script has taken a step, it is training."""
    if outer == phases.STARTING and phase in phases.STEPS:
        return phases.TRAINING
    return outer
