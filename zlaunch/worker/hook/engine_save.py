"""Save a training without a Trainer on request, at the end of a step, and end its script.

The script needs no change: its engine saves to the same directory and with the same options as before, or
accelerate does if the script trains with it. An engine is saved when the next step begins, after the script
has logged the last one. A checkpoint of accelerate has the position in the data, so accelerate saves as soon
as the optimizer and the schedules have taken the step.
"""

import contextlib
import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from zlaunch.worker.hook.heartbeat import Heartbeat
from zlaunch.worker.hook.imports import unseen, without_first
from zlaunch.worker.hook.save_request import SaveAt, SaveRequest

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

ACCELERATOR, SCHEDULER, DEEPSPEED_SCHEDULER = (
    "accelerate.accelerator",
    "accelerate.scheduler",
    "accelerate.utils.deepspeed",
)
MODULES = (ACCELERATOR, SCHEDULER, DEEPSPEED_SCHEDULER)

_NUMBER = re.compile(r"(.*?)(\d+)")


class _LastSave(NamedTuple):
    """The last save of an engine, and its counters at that time."""

    directory: str
    options: Mapping[str, object]
    counters: tuple[int, ...]


class EngineSaver:
    """Checks for a request at the end of each step, and saves once."""

    def __init__(self, heartbeat: Heartbeat, request: SaveRequest) -> None:
        self._heartbeat, self._request = heartbeat, request
        self._engines: dict[int, DeepSpeedEngine] = {}
        """Those that have taken a step."""
        self._steps = 0
        self._saves: dict[int, _LastSave] = {}
        self._accelerator: Any = None
        self._state_saved: _LastSave | None = None
        self._due: SaveAt | None = None
        self._is_done = False

    def _is_on(self) -> bool:
        """Whether to check: not with a Trainer, which saves itself, nor in threads and forked processes."""
        return not self._is_done and not self._heartbeat.is_trainer and self._heartbeat.is_here()

    def stepped(self, engine: Any) -> None:
        """Check once after the end of a step; micro-batches of the next step may follow."""
        if not self._is_on() or not hasattr(engine, "global_steps"):
            return
        self._engines[id(engine)] = engine
        if not self._heartbeat.counts_steps or engine.global_steps == self._steps:
            return
        self._steps = engine.global_steps
        self._due = self._request.at(self._steps)
        if self._due is not None and self._accelerated() is not None and not self._has_more_to_do():
            self._save_and_end()

    def begins(self) -> None:
        """Save before the next step begins, at the latest; a script that counts its steps has done so."""
        if not self._engines or not self._is_on():
            return
        if not self._heartbeat.counts_steps and self._heartbeat.step != self._steps:
            self._steps = self._heartbeat.step
            self._due = self._request.at(self._steps)
        if self._due is not None:
            self._save_and_end()

    def saved(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Remember the arguments with which the script saved an engine."""
        with contextlib.suppress(Exception):
            engine, *positional = args
            names = ("save_dir", "tag", "client_state", "save_latest", "exclude_frozen_parameters")
            options = {**dict(zip(names, positional, strict=False)), **kwargs}
            directory = os.path.abspath(str(options.pop("save_dir")))  # noqa: PTH100
            options.pop("tag", None)
            self._saves[id(engine)] = _LastSave(directory, options, _counters(engine))

    def watch(self, module: ModuleType) -> None:
        """Wrap the functions of accelerate, if a script trains with it."""
        if module.__name__ == ACCELERATOR:
            module.Accelerator.__init__ = self._then(module.Accelerator.__init__, self._accelerates)
            module.Accelerator.save_state = self._then(module.Accelerator.save_state, self._saved_state)
        elif module.__name__ == SCHEDULER:
            module.AcceleratedScheduler.step = self._then(module.AcceleratedScheduler.step, self._scheduled)
        else:
            wrapper = module.DeepSpeedSchedulerWrapper
            wrapper.step = self._then(wrapper.step, self._scheduled)

    def _then(self, function: Callable[..., object], after: Callable[..., None]) -> Callable[..., object]:
        @functools.wraps(function)
        def followed(*args: object, **kwargs: object) -> object:
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                error.__traceback__ = without_first(error)
                raise
            after(*args, **kwargs)
            return result

        return unseen(followed)

    def _accelerates(self, accelerator: object, *_: object, **__: object) -> None:
        self._accelerator = accelerator

    def _saved_state(self, _: object, output_dir: Any = None, *__: object, **options: object) -> None:
        with contextlib.suppress(Exception):
            directory = ""
            if output_dir is not None:
                directory = os.path.abspath(os.fspath(output_dir))  # noqa: PTH100
            self._state_saved = _LastSave(directory, options, _counters(self._accelerated()))

    def _scheduled(self, scheduler: object, *_: object, **__: object) -> None:
        schedulers = getattr(self._accelerator, "_schedulers", ())
        if self._due is not None and schedulers and schedulers[-1] is scheduler:
            self._save_and_end()

    def _accelerated(self) -> Any:
        wrapper = getattr(self._accelerator, "deepspeed_engine_wrapped", None)
        engine = getattr(wrapper, "engine", None)
        if id(engine) not in self._engines:
            return None
        return engine

    def _has_more_to_do(self) -> bool:
        """Whether the script has to do more before a step has ended: `save_state` saves that, too."""
        accelerator = self._accelerator
        has_own = any(getattr(accelerator, name, ()) for name in ("_schedulers", "_custom_objects"))
        return self._accelerated() is not None and has_own

    def _save_and_end(self) -> None:
        due, self._due, self._is_done = self._due, None, True
        if due is None:
            return
        self._heartbeat.note(saves_step=due.step)
        if self._accelerated() is not None:
            self._save_state(due)
        else:
            for engine in self._engines.values():
                self._save(engine, due)
        raise SystemExit(0)

    def _save_state(self, due: SaveAt) -> None:
        last, now = self._state_saved, _counters(self._accelerated())
        if getattr(self._accelerator.project_configuration, "automatic_checkpoint_naming", False):
            self._accelerator.save_state()
        elif last is None:
            self._accelerator.save_state(f"{due.directory}/step_{due.step}")
        else:
            self._accelerator.save_state(_name_at_step(last, now, due.step), **last.options)

    def _save(self, engine: Any, due: SaveAt) -> None:
        last = self._saves.get(id(engine))
        if last is None:
            if due.directory and len(self._engines) == 1:
                engine.save_checkpoint(due.directory)
            return
        options = {**last.options, "save_latest": True}
        if isinstance(state := options.get("client_state"), Mapping):
            options["client_state"] = _updated(state, last.counters, _counters(engine))
        engine.save_checkpoint(last.directory, **options)


def _counters(engine: Any) -> tuple[int, ...]:
    """Return the counters of an engine that a script may save, counted from 1 and from 0."""
    counted = [getattr(engine, name, -1) for name in ("global_steps", "micro_steps", "global_samples")]
    return (*counted, *(number - 1 for number in counted))


def _updated(state: Mapping[str, object], then: Sequence[int], now: Sequence[int]) -> dict[str, object]:
    """Update the numbers in a script's own state that counted steps, micro-batches or samples."""
    updated = dict(state)
    for key, value in state.items():
        if type(value) is int and value > 0 and value in then:
            updated[key] = now[then.index(value)]
    return updated


def _name_at_step(last: _LastSave, now: Sequence[int], step: int) -> str:
    """Name a directory as the script would: `step_20` becomes `step_23`, beside `epoch_1` it is new."""
    parent, _, name = last.directory.rpartition("/")
    match = _NUMBER.fullmatch(name)
    if match is None:
        return last.directory
    number = int(match[2])
    if number not in last.counters:
        return f"{parent}/step_{step}"
    return f"{parent}/{match[1]}{now[last.counters.index(number)]}"
