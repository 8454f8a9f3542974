"""The engines of a program: which phase it is in, and when each has taken two steps."""

import gc
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import deepspeed
import torch
from deepspeed.runtime.engine import DeepSpeedEngine

from zlaunch.estimate.program import EngineSummary
from zlaunch.estimate.rehearsal.attribution import Attribution
from zlaunch.estimate.rehearsal.fake_tensors import FakeGpuMode
from zlaunch.estimate.rehearsal.model import CannotTell
from zlaunch.estimate.rehearsal.program.settings import ProgramSettings
from zlaunch.estimate.rehearsal.quantized import num_parameters

STEPS: Final = 2
"""Optimizer steps after which a program is left."""


@dataclass
class Engine:
    """An engine, and what it did so far."""

    engine: DeepSpeedEngine
    parameters: int
    trainable: int
    steps: int = 0
    trains_in_eval: bool = False

    @property
    def facts(self) -> EngineSummary:
        """Describe it."""
        model = self.engine.module
        return EngineSummary(type(model).__name__, self.parameters, self.trainable, self.steps)


@dataclass
class Phases:
    """The current phase of a program, entered where its engines are called."""

    mode: FakeGpuMode
    attribution: Attribution
    name: str = ""

    def enter(self, name: str, part: str | None = None) -> None:
        """End a phase, with the garbage that it left, and begin another one."""
        if self.name:
            gc.collect()
        if name == "initialize":
            gc.disable()  # so that memory depends on what is done, not on when it is collected
        self.name = name
        self.attribution.phase = part or name
        log = self.mode.log
        log.phase = name
        log.marks.append((len(log.entries), name))


@dataclass
class EngineWatch:
    """Watches all engines; `leave` is called when each that trains has taken two steps."""

    phases: Phases
    leave: Callable[[], None]
    settings: ProgramSettings
    engines: dict[int, Engine] = field(default_factory=dict)
    flops: float = 0.0

    def install(self) -> None:
        """Wrap what creates engines, and their methods."""
        initialize = deepspeed.initialize
        signature = inspect.signature(initialize)

        def initialized(*args: Any, **kwargs: Any) -> Any:
            self.phases.enter("initialize")
            given = signature.bind(*args, **kwargs)
            self.settings.replace_config(given.arguments)
            engine, *rest = initialize(*given.args, **given.kwargs)
            self._add(engine)
            return (engine, *rest)

        deepspeed.initialize = initialized
        for name in ("forward", "backward", "step"):
            setattr(DeepSpeedEngine, name, self._watched(name, getattr(DeepSpeedEngine, name)))

    def is_training(self) -> bool:
        """Whether an engine would train on what is read now."""
        if not torch.is_grad_enabled():
            return False
        trained = self.trained  # before the first step, nothing tells
        return not trained or any(one.engine.module.training or one.trains_in_eval for one in trained)

    @property
    def trained(self) -> list[Engine]:
        """The engines that took a step."""
        return [engine for engine in self.engines.values() if engine.steps]

    def _add(self, engine: DeepSpeedEngine) -> None:
        if not isinstance(engine, DeepSpeedEngine) or hasattr(engine, "train_schedule"):
            raise CannotTell("it splits its model into the stages of a pipeline")
        model = engine.module
        self.engines[id(engine)] = Engine(engine, *num_parameters(model))
        if engine.optimizer is not None:
            is_half = engine.bfloat16_enabled() or engine.fp16_enabled()
            self.phases.attribution.learn(model, vocab_size(model), is_half=bool(is_half))

    def _watched(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(engine: DeepSpeedEngine, *args: Any, **kwargs: Any) -> Any:
            known = self.engines.get(id(engine))
            if known is None or engine.optimizer is None or not torch.is_grad_enabled():
                return method(engine, *args, **kwargs)
            self._enter(known, name)
            is_last = name == "step" and bool(engine.is_gradient_accumulation_boundary())
            result = method(engine, *args, **kwargs)
            if is_last:
                self._count_step(known)
            return result

        return call

    def _enter(self, known: Engine, name: str) -> None:
        if name == "backward" and not known.engine.module.training:
            known.trains_in_eval = True
        if any(engine.steps for engine in self.engines.values()):
            self.phases.enter("second step", name)
            if name == "forward":
                self.phases.mode.traffic.begin()
        else:
            self.phases.enter(name)

    def _count_step(self, known: Engine) -> None:
        known.steps += 1
        if known.steps == STEPS:
            self.flops = self.phases.mode.flops
        self.phases.mode.flops = 0.0
        if all(engine.steps >= STEPS for engine in self.trained):
            self.leave()


def vocab_size(model: torch.nn.Module) -> int | None:
    """Return the size of the vocabulary of a model of transformers."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    size = getattr(config, "vocab_size", None)
    if isinstance(size, int):
        return size
    return None


def config_of(model: torch.nn.Module) -> Mapping[str, Any]:
    """Return the config.json of a model of transformers; empty for any other."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_dict"):
        written: Mapping[str, Any] = config.to_dict()
        return written
    return {}
