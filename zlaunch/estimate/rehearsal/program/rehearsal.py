"""Run a program on fake tensors until its engines have taken two steps, and tell what it held."""

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

import torch
from deepspeed.accelerator import real_accelerator
from torch._subclasses import fake_tensor

from zlaunch.dsconfig.batch import rank_groups
from zlaunch.estimate.forecast import EVALUATION, CountedCollective, Forecast, parts_at_peak
from zlaunch.estimate.program import ENDED_EARLY, ProgramOrder, RehearsedProgram
from zlaunch.estimate.rehearsal import accelerator, checkpoints, cuda_semantics, known_data, steps, training
from zlaunch.estimate.rehearsal.allocation_log import AllocationLog
from zlaunch.estimate.rehearsal.attribution import Attribution
from zlaunch.estimate.rehearsal.device import NAME
from zlaunch.estimate.rehearsal.model import NotRehearsed
from zlaunch.estimate.rehearsal.program import cuda, evaluation, generation, groups, pretrained, values
from zlaunch.estimate.rehearsal.program.batches import BatchReader
from zlaunch.estimate.rehearsal.program.engines import Engine, EngineWatch, Phases, config_of
from zlaunch.estimate.rehearsal.program.mode import (
    ProgramMode,
    keep_models_fake,
    read_files,
    share_arrays,
    without_inference_tensors,
)
from zlaunch.estimate.rehearsal.program.run_program import (
    is_of_engine,
    is_status,
    one_line,
    place_in_program,
    run_as_python,
)
from zlaunch.estimate.rehearsal.program.settings import ProgramSettings
from zlaunch.files import write_whole
from zlaunch.json_lines import plain
from zlaunch.worker.hook import accelerate_cpu
from zlaunch.worker.hook.confinement import Confinement
from zlaunch.worker.hook.other_programs import NotStarted

_NO_DATA = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedFakeTensorException,
    fake_tensor.UnsupportedOperatorException,
    NotImplementedError,
)
"""Exceptions of code that needs the data of tensors."""


_NO_DRIVER: Final = "libcuda.so cannot found"
"""What Triton says where there is no GPU that it could compile for."""


class OutOfTime(BaseException):
    """The program has not taken two steps in time; no `except Exception` of it gets this."""


class ProgramRehearsal:
    """The rehearsal of one program in this process, which ends with it."""

    def __init__(self, order: ProgramOrder, file: Path, folder: Path, others: Sequence[int]) -> None:
        """Patch this process; the result goes to a file, and temporary files into a folder.

        `others` are the processes of other ranks, which this one waits for.
        """
        self._order, self._file, self._folder, self._others = order, file, folder, others
        self._began = time.monotonic()
        importlib.import_module("transformers.trainer")  # which may look for a real GPU
        log, attribution = AllocationLog(), Attribution(None, is_half=False)
        with known_data.masks_of_data():
            steps.prepare_for(order.accelerator)
        device = steps.device_of(order.accelerator)
        kernels = cuda_semantics.kernel_memory(order.cublas_bytes)
        self._mode = ProgramMode(log, attribution.category_of, kernels, device)
        self._settings = ProgramSettings(str(folder / "swap"))
        self._phases = Phases(self._mode, attribution)
        self._engines = EngineWatch(self._phases, self.leave, self._settings)
        self._reader = BatchReader(
            self._mode, order.most_batches, self._engines.is_training, lambda: self._settings.asked
        )
        self._confinement = Confinement(folder, not_started=values.note_start)
        self._uncounted: dict[str, str] = {}
        self._collectives_of_steps: tuple[CountedCollective, ...] = ()
        accelerator.replace_builders(self._mode)
        groups.apply()
        pretrained.apply(self._mode)
        generation.apply(self._uncounted)
        values.apply()
        if order.accelerator == "cuda":
            real_accelerator.set_accelerator(accelerator.FakeGPU(self._mode, order.ranks_per_host))
            cuda.apply(log, order.ranks_per_host, order.gpu_bytes)
        else:
            accelerate_cpu.allow_deepspeed(sys.modules["accelerate.state"])
        self._settings.install()
        self._engines.install()
        self._reader.install()
        keep_models_fake(self._mode)
        read_files(self._mode)
        share_arrays(self._mode)
        without_inference_tensors()

    def run(self) -> NoReturn:
        """Run the program as Python would, and write why there is no forecast if it ends by itself."""
        with torch.autograd.set_multithreading_enabled(False), self._mode:
            self._phases.enter("load")
            self._confinement.install()
            try:
                run_as_python(self._order.argv)
                self._end(self._without_forecast(None))
            except BaseException as error:  # noqa: BLE001 - SystemExit, too, is how a program may end
                self._end(self._without_forecast(error))

    def leave(self) -> NoReturn:
        """Save as the Trainer does, and end the program."""
        engine = self._engines.trained[0]
        self._collectives_of_steps = tuple(self._mode.traffic.counted())
        self._evaluate()
        self._phases.enter("save")
        checkpoint = self._folder / "checkpoint"
        try:
            with contextlib.suppress(NotRehearsed):
                checkpoints.save(engine.engine, engine.engine.module, checkpoint)
        except BaseException as error:  # noqa: BLE001 - whatever it is
            self._end(self._without_forecast(error))
        self._end(self._result())

    def _evaluate(self) -> None:
        trainer = evaluation.running_trainer()
        if trainer is None:
            return
        self._phases.enter(EVALUATION)
        try:
            trainer.evaluate()
        except Exception as error:  # noqa: BLE001 - metrics may need values of any kind
            self._uncounted["the rest of its evaluation"] = f"after {_one_line(error)}"
        if evaluation.keeps_predictions(trainer):
            self._uncounted["the predictions of its evaluation"] = "beyond two batches"

    def _result(self) -> RehearsedProgram:
        engine = self._engines.trained[0]
        log = self._mode.log
        gc.collect()
        phases = log.phases()
        forecast = Forecast(
            "rehearsal",
            phases,
            parts_at_peak(phases),
            engine.parameters,
            engine.trainable,
            type(training.base_optimizer(engine.engine)).__name__,
            curve=log.curve(),
            flops=self._engines.flops * self._settings.shortened,
            collectives=self._collectives(engine),
            seconds=time.monotonic() - self._began,
        )
        return replace(self._known(engine), forecast=forecast, uncounted=self._uncounted)

    def _collectives(self, engine: Engine) -> tuple[CountedCollective, ...]:
        if not rank_groups(_config_of_engine(engine), self._order.world_size).are_split:
            return ()
        return self._collectives_of_steps

    def _known(self, engine: Engine | None) -> RehearsedProgram:
        facts = tuple(known.facts for known in self._engines.engines.values())
        result = RehearsedProgram(engines=facts, batches=self._reader.longest, values=values.read_values())
        if engine is None:
            return result
        return replace(
            result,
            ds_config=plain(_config_of_engine(engine)),
            model=plain(config_of(engine.engine.module)),
            accumulated=self._settings.asked,
        )

    def _without_forecast(self, error: BaseException | None) -> RehearsedProgram:
        """Tell why the program ended before it took two steps."""
        known = self._known(next(iter(self._engines.engines.values()), None))
        others = ", ".join(f"`{read.code}` ({read.place})" for read in known.values if read.kind == "starts")
        without = f"; it started without {others}" if others else ""
        if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
            return replace(known, error=ENDED_EARLY + without, is_own_error=not others)
        frames = traceback.extract_tb(error.__traceback__)
        message = _one_line(error)
        if not isinstance(error, NotStarted):
            message += without
        is_of_device = NAME in str(error) or _NO_DRIVER in str(error)
        needs_data = (
            isinstance(error, (*_NO_DATA, NotRehearsed, OutOfTime))
            or is_of_device
            or bool(others)
            or (_is_in_fake_tensors(frames) and error is not self._mode.genuine_error)
        )
        return replace(
            known,
            error=message,
            place=place_in_program(frames, self._order.argv[0]),
            exited=is_status(error),
            is_own_error=not needs_data,
            is_refusal=not needs_data and is_of_engine(frames),
        )

    def _end(self, result: RehearsedProgram) -> NoReturn:
        result = replace(result, made=self._confinement.lift())
        write_whole(self._file, json.dumps(asdict(result)))
        signal.alarm(0)
        for other in self._others:
            os.waitpid(other, 0)
        os._exit(0)


def _config_of_engine(engine: Engine) -> dict[str, Any]:
    """Return the ds_config of an engine, with the ranks that share a sequence, wherever that was set."""
    config = dict(engine.engine._config._param_dict)
    if (sharing := getattr(engine.engine, "sequence_parallel_size", 1)) > 1:
        config["sequence_parallel_size"] = sharing
    return config


def _is_in_fake_tensors(frames: traceback.StackSummary) -> bool:
    places = ("/torch/_subclasses/", "/zlaunch/estimate/rehearsal/")
    return bool(frames) and any(place in frames[-1].filename for place in places)


def _one_line(error: BaseException) -> str:
    if isinstance(error, OutOfTime):
        return "it did not take two steps in time"
    if isinstance(error, _NO_DATA[:2]):
        return f"`{error}` needs the values of tensors"
    while isinstance(error, ImportError) and error.__cause__ is not None:
        error = error.__cause__  # which a package hides that imports its modules only when they are used
    if isinstance(error, (NotRehearsed, NotStarted)):
        return str(error)
    if NAME in str(error):
        return f"a kernel for GPUs cannot be rehearsed: {one_line(error).replace(NAME, 'the GPU')}"
    if _NO_DRIVER in str(error):
        return "a kernel of Triton cannot be rehearsed: it is compiled for a GPU"
    return one_line(error)


def out_of_time(_: int, __: FrameType | None) -> None:
    """Raise in the program what ends it."""
    raise OutOfTime
