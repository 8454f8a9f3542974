"""The check of a user's program in one rank."""

import contextlib
import functools
import importlib
import inspect
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.engine import DeepSpeedEngine

from zlaunch.estimate.rehearsal.model import CannotTell, NotRehearsed
from zlaunch.estimate.rehearsal.program.run_program import (
    is_of_engine,
    is_status,
    one_line,
    place_in_program,
    run_as_python,
)
from zlaunch.estimate.rehearsal.program.settings import ProgramSettings
from zlaunch.estimate.rehearsal.training import base_optimizer
from zlaunch.files import write_whole
from zlaunch.parity.program.plain_module import PlainModule
from zlaunch.parity.program.watched_engine import WatchedEngine
from zlaunch.parity.script import NO_STEP, MeasuredScript, ScriptOrder, TrainedEngine, result_of
from zlaunch.parity.trial import RANKS, why_uncheckable
from zlaunch.parity.verdict import Comparison
from zlaunch.units import count, memory, plural
from zlaunch.worker.hook import accelerate_cpu
from zlaunch.worker.hook.confinement import Confinement

_PATIENCE: Final = 10.0
"""Seconds that a rank may take to end after another one has failed."""
_BYTES_OF_PARAMETER: Final = 140
"""What two ranks hold for each parameter: engines, copies, and on the first rank what is compared."""


class _OutOfTime(BaseException):
    """The program has not taken its steps in time; no `except Exception` of it gets this."""


def out_of_time(_: int, __: FrameType | None) -> None:
    """Raise in the program what ends it."""
    raise _OutOfTime


class ScriptCheck:
    """The check of one program in one rank, whose process ends with it."""

    def __init__(self, order: ScriptOrder, rank: int, folder: Path, others: Sequence[int]) -> None:
        """Prepare to write the result into a folder; `others` are processes that this one waits for."""
        own = Path(tempfile.mkdtemp())
        self._order, self._rank, self._others = order, rank, others
        self._file = result_of(folder, rank)
        self._began = time.monotonic()
        self._confinement = Confinement(folder / "written", "a check")
        self._settings = ProgramSettings(str(own / "swap"))
        self._engines: dict[int, WatchedEngine] = {}
        self._trained: WatchedEngine | None = None

    def run(self) -> NoReturn:
        """Run the program as Python would, until it has taken its steps."""
        accelerate_cpu.allow_deepspeed(sys.modules[accelerate_cpu.MODULE])
        get_accelerator().is_fp16_supported = lambda: True  # slowly, on all CPUs
        backend: Any = importlib.import_module("deepspeed.comm.torch")
        backend.build_shm_op = lambda: None  # a short cut between ranks on CPUs, which GPUs do not take
        if self._others:
            threading.Thread(target=self._watch_others, daemon=True).start()
        self._settings.install()
        self._wrap_engines()
        _save_nothing()
        self._confinement.install()
        try:
            run_as_python(self._argv())
            self._end(self._without_steps(None))
        except BaseException as error:  # noqa: BLE001 - SystemExit, too, is how a program may end
            self._end(self._without_steps(error))

    def _argv(self) -> tuple[str, ...]:
        first, own = f"{self._order.local_rank_flag}=0", f"{self._order.local_rank_flag}={self._rank}"
        return tuple(own if word == first else word for word in self._order.argv)

    def _wrap_engines(self) -> None:
        initialize = deepspeed.initialize
        signature = inspect.signature(initialize)

        @functools.wraps(initialize)
        def initialized(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            self._settings.replace_config(given.arguments)
            model = given.arguments.get("model")
            plain = None
            if isinstance(model, torch.nn.Module):
                plain = self._guarded(functools.partial(self._copy, model))
            engine, *rest = initialize(*given.args, **given.kwargs)
            if engine.optimizer is not None and plain is not None:
                self._guarded(functools.partial(self._watch, engine, plain))
            return (engine, *rest)

        deepspeed.initialize = initialized
        backward, step = DeepSpeedEngine.backward, DeepSpeedEngine.step

        @functools.wraps(backward)
        def backwards(engine: DeepSpeedEngine, *args: Any, **kwargs: Any) -> Any:
            run = functools.partial(backward, engine, *args, **kwargs)
            if (watched := self._engines.get(id(engine))) is None:
                return run()
            loss = args[0] if args else kwargs.get("loss")
            divides = bool(kwargs.get("scale_wrt_gas", True))
            return self._guarded(lambda: watched.backward(run, loss, divides=divides))

        @functools.wraps(step)
        def steps(engine: DeepSpeedEngine, *args: Any, **kwargs: Any) -> Any:
            run = functools.partial(step, engine, *args, **kwargs)
            if (watched := self._engines.get(id(engine))) is None:
                return run()
            result = self._guarded(lambda: self._step(watched, run))
            if watched.steps >= self._order.steps:
                self._end(self._result())
            return result

        DeepSpeedEngine.backward, DeepSpeedEngine.step = backwards, steps

    def _guarded(self, do: Callable[[], Any]) -> Any:
        """End the program where nothing can be told: it could catch the exception."""
        try:
            return do()
        except NotRehearsed as error:
            traceback.print_exception(error)
            self._end(MeasuredScript(error=str(error)))

    def _copy(self, model: torch.nn.Module) -> PlainModule:
        sizes = (getattr(weight, "ds_numel", weight.numel()) for weight in model.parameters())
        parameters = sum(sizes)
        if (needed := parameters * _BYTES_OF_PARAMETER) > self._order.free_bytes:
            free = memory(self._order.free_bytes)
            takes = f"its model has {count(parameters)} parameters, for which a check takes {memory(needed)}"
            raise CannotTell(f"{takes}; {free} are free here")
        return PlainModule(model)

    def _watch(self, engine: Any, plain: PlainModule) -> None:
        if not isinstance(engine, DeepSpeedEngine) or hasattr(engine, "train_schedule"):
            raise CannotTell("it splits its model into the stages of a pipeline")
        if engine.has_moe_layers or engine.dp_world_size != RANKS:
            raise CannotTell("its ranks hold different parts of the model")
        if (why := why_uncheckable(engine._config._param_dict)) is not None:
            raise CannotTell(why[0])
        self._engines[id(engine)] = WatchedEngine(engine, plain)

    def _step(self, watched: WatchedEngine, run: Callable[[], Any]) -> Any:
        if self._trained not in (None, watched):
            raise CannotTell("it trains with two engines")
        self._trained = watched
        return watched.step(run)

    def _result(self) -> MeasuredScript:
        watched = self._trained
        assert watched is not None
        engine = watched.engine
        return MeasuredScript(
            Comparison(
                tuple(watched.distances),
                watched.parameters,
                0,
                type(base_optimizer(engine)).__name__,
                tuple(sorted(watched.unreached)),
                time.monotonic() - self._began,
            ),
            TrainedEngine(
                type(engine.module).__name__,
                engine.zero_optimization_stage(),
                watched.precision,
                engine.gradient_accumulation_steps(),
                self._settings.asked,
            ),
            watched.steps,
            tuple(watched.unchecked),
        )

    def _without_steps(self, error: BaseException | None) -> MeasuredScript:
        """Tell why the program ended before it took its steps."""
        if isinstance(error, NotRehearsed):
            return MeasuredScript(error=str(error))
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            if self._trained is not None and self._trained.steps:
                return self._result()
            if self._trained is not None and self._trained.skipped:
                steps = plural(self._trained.skipped, "step")
                return MeasuredScript(error=f"its engine skipped {steps}: gradients were not finite")
            return MeasuredScript(error=NO_STEP)
        frames = traceback.extract_tb(error.__traceback__)
        message = one_line(error)
        if isinstance(error, _OutOfTime):
            message = f"it did not take {self._order.steps} steps in time"
        elif not is_status(error):
            traceback.print_exception(error)
        return MeasuredScript(
            error=message,
            exited=is_status(error),
            place=place_in_program(frames, self._order.argv[0]),
            is_refusal=is_of_engine(frames),
        )

    def _end(self, result: MeasuredScript) -> NoReturn:
        ended = time.time()
        if result.error is not None and (killed := self._killed()) is not None:
            result = MeasuredScript(error=killed)  # of which the other error is a consequence
        result = replace(result, ended=ended, made=self._confinement.lift())
        write_whole(self._file, json.dumps(asdict(result)))
        signal.alarm(0)
        self._await_others()
        os._exit(0)

    def _killed(self) -> str | None:
        """Tell which other rank was ended by a signal; None if none was."""
        for rank, other in enumerate(self._others, start=1):
            ended = os.waitid(os.P_PID, other, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if ended is not None and ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED):
                number = signal.Signals(ended.si_status)
                if number is signal.SIGKILL:
                    return f"rank {rank} was killed, as when memory runs out"
                return f"rank {rank} was ended by {number.name}"
        return None

    def _await_others(self) -> None:
        """Wait for the other processes, and end those that wait for this one."""
        deadline = time.monotonic() + _PATIENCE
        for other in self._others:
            with contextlib.suppress(ChildProcessError, ProcessLookupError):
                while not os.waitpid(other, os.WNOHANG)[0]:
                    if time.monotonic() > deadline:
                        os.kill(other, signal.SIGKILL)
                    time.sleep(0.02)

    def _watch_others(self) -> None:
        """End this process some time after another one has failed: it may wait for it."""
        for rank, other in enumerate(self._others, start=1):
            ended = os.waitid(os.P_PID, other, os.WEXITED | os.WNOWAIT)
            result = self._file.with_name(result_of(Path(), rank).name)
            if not (result.exists() and json.loads(result.read_bytes())["error"] is None):
                time.sleep(_PATIENCE)
                self._end(MeasuredScript(error=f"rank {rank} ended with {ended and ended.si_status}"))


def _save_nothing() -> None:
    """Let engines and safetensors write no files, past the functions of Python that are confined."""
    import safetensors.torch

    for name in ("save_checkpoint", "save_16bit_model", "save_fp16_model"):
        setattr(DeepSpeedEngine, name, lambda *_, **__: True)
    for name in ("save_file", "save_model"):
        setattr(safetensors.torch, name, lambda *_, **__: None)
