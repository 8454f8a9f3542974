"""Read the progress of a DeepSpeed engine, without a change to the script."""

import atexit
import contextlib
import functools
import math
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from zlaunch.rundir import phases
from zlaunch.worker.hook.heartbeat import Heartbeat
from zlaunch.worker.hook.imports import unseen, without_first
from zlaunch.worker.hook.step_profiler import StepProfiler

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from torch import Tensor

GPU_SECONDS = 5.0
"""How often loss and peak memory are read from the GPU, which has to synchronize for that."""
EARLY_STEPS = 3
"""They are read in each of the first steps too: the second already holds the optimizer's states."""


class _Accumulation:
    """What an engine has accumulated since its last step."""

    def __init__(self) -> None:
        self._summed: Tensor | None = None
        self._averaged: Tensor | None = None
        self._num_averaged = 0
        self._is_complete = True
        """Whether each loss was one number."""
        self.num_backwards = 0
        """Since the last call of `step`, which need not take a step."""
        self.num_discarded = 0
        """How many backward passes were overwritten before the step."""
        self.step = self.skipped = 0
        """The counters of the engine before its step."""
        self._is_reduced = False
        """Whether the gradients of the step were reduced, which the next reduction overwrites."""
        self._has_forward = False
        """Whether another forward pass has followed."""

    def forward(self) -> None:
        """Take in a forward pass."""
        self._has_forward = True

    def add(self, given: object, *, is_scaled: bool) -> None:
        """Take in the loss of a backward pass; one that `is_scaled` is divided by the engine.

        Sums stay on their device: nothing waits for it.
        """
        loss = cast("Tensor | None", given)
        if loss is None or loss.numel() != 1:
            self._is_complete = False
            return
        loss = loss.detach().float()
        if loss.dim():
            loss = loss.reshape(())
        if is_scaled:
            self._averaged = loss if self._averaged is None else self._averaged + loss
            self._num_averaged += 1
        else:
            self._summed = loss if self._summed is None else self._summed + loss

    def backward(self, *, reduces: bool, overwrites: bool) -> None:
        """Take in the end of a backward pass, and whether its gradients replace reduced ones."""
        self.num_backwards += 1
        if reduces and overwrites and self._is_reduced and self._has_forward:
            self.num_discarded += 1
        self._is_reduced |= reduces
        self._has_forward = False

    def loss(self, grad_accum: int) -> "Tensor | None":
        """Return the loss of the step; None if it is not known.

        Losses that the script has divided are added up. Those that the engine divides are averaged, also at
        the end of an epoch, where fewer micro-batches may be left than the engine divides by.
        """
        if not self._is_complete:
            return None
        if self._averaged is None:
            return self._summed
        averaged, count = self._averaged, min(self._num_averaged, grad_accum)
        if count > 1:
            averaged = averaged / count
        return averaged if self._summed is None else averaged + self._summed


class EngineFacts:
    """Reads facts from engines before and after their phases; raises nothing.

    A program may have several: those of a GAN, or a reference model. The steps of the one that steps most
    often are the steps of the program; what the others do is a part of them.
    """

    def __init__(self, heartbeat: Heartbeat, profiler: StepProfiler | None = None) -> None:
        self._heartbeat, self._profiler = heartbeat, profiler
        self._accumulations: dict[int, _Accumulation] = {}
        """Those of each engine."""
        self._leading: Callable[[], object] = _no_engine
        """Returns the engine whose steps count; None before the first, or once it is gone."""
        self._followed: dict[int, _Accumulation] = {}
        """Other engines that have stepped since it did, and what they had accumulated."""
        self._num_discarded = self._num_taken = self._num_skipped = self._num_idle = 0
        self._has_learned = False
        self._tokens: dict[int, int] = {}
        """Those of each engine in training mode, until one leads, whose are counted from then on."""
        self._asked, self._num_asked = 0.0, 0
        self._unread: tuple[Tensor, int] | None = None
        """The loss of the last step, and its number, if reading it would have had to wait for a GPU."""
        atexit.register(self._note_gpu_peaks)

    def watch(self, engine_class: type) -> None:
        """Notice the end of every backward pass, also where a script calls `loss.backward()` itself."""
        name = "_backward_epilogue"
        if (epilogue := vars(engine_class).get(name)) is not None:
            setattr(engine_class, name, self._noting(epilogue))

    def _noting(self, epilogue: Callable[["DeepSpeedEngine"], None]) -> Callable[["DeepSpeedEngine"], None]:
        @functools.wraps(epilogue)
        def noting(engine: "DeepSpeedEngine") -> None:
            try:
                epilogue(engine)
            except BaseException as error:
                error.__traceback__ = without_first(error)
                raise
            with contextlib.suppress(Exception):
                self._accumulation(engine).backward(
                    reduces=bool(engine.is_gradient_accumulation_boundary()), overwrites=_overwrites(engine)
                )

        return unseen(noting)

    def _accumulation(self, engine: object) -> _Accumulation:
        key = id(engine)
        if key not in self._accumulations:
            self._accumulations[key] = _Accumulation()
        return self._accumulations[key]

    def before(self, phase: str, args: Sequence[object], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Read the inputs of a phase."""
        try:
            counts = self._leading() in (None, args[0]) and trains(args[0])
            if self._profiler is not None and phase in (phases.FORWARD, phases.TRAINING) and counts:
                self._profiler.forward(getattr(args[0], "global_steps", 0))
                if self._profiler.is_recording:
                    self._heartbeat.clock.leave_out()
            if phase == phases.FORWARD:
                self._accumulation(args[0]).forward()
                if counts:
                    self._count_tokens(args, kwargs)
                return {}
            if phase in (phases.STEPPING, phases.TRAINING):
                accumulation = self._accumulation(args[0])
                accumulation.step = getattr(args[0], "global_steps", 0)
                accumulation.skipped = getattr(args[0], "skipped_steps", 0)
            if phase in (phases.STEPPING, phases.TRAINING) and self._heartbeat.get("first_step") is None:
                return {"first_step": cast("DeepSpeedEngine", args[0]).global_steps}
            if phase == phases.BACKWARD:
                given = args[1] if len(args) > 1 else kwargs.get("loss")
                is_scaled = bool(kwargs.get("scale_wrt_gas", True))
                self._accumulation(args[0]).add(given, is_scaled=is_scaled)
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

    def _count_tokens(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Count the tokens of a forward pass; reading a shape needs no synchronization."""
        inputs = kwargs.get("input_ids")
        if inputs is None and len(args) > 1:
            inputs = args[1]
            if hasattr(inputs, "get"):
                inputs = inputs.get("input_ids")
        ids = cast("Tensor | None", inputs)
        if ids is not None and not ids.is_floating_point() and ids.dim() == 2:
            key = id(args[0])
            self._tokens[key] = self._tokens.get(key, 0) + ids.numel() // _ranks_of_a_sequence(args[0])

    def evaluates(self, engine: object) -> bool:
        """Whether a forward pass of an engine is part of an evaluation: not that of a reference model."""
        leading = self._leading()
        return not trains(engine) and (leading in (None, engine) or not trains(leading))

    def _leads(self, engine: "DeepSpeedEngine", accumulation: _Accumulation) -> bool:
        """Whether a step of this engine ends a step of the program."""
        leading = self._leading()
        if leading is not None and leading is not engine and id(engine) not in self._followed:
            self._followed[id(engine)] = accumulation
            return False
        if leading is not engine:  # it is the first, or has stepped twice since the other did
            self._leading = weakref.ref(engine)
            if (missed := self._followed.get(id(engine))) is not None:
                self._note_missed(engine, missed)
            self._tokens = {id(engine): self._tokens.get(id(engine), max(self._tokens.values(), default=0))}
        self._followed.clear()
        return True

    def _note_missed(self, engine: "DeepSpeedEngine", accumulation: _Accumulation) -> None:
        """Note the loss of the step before, which was taken for a part of another engine's step."""
        loss, step = accumulation.loss(engine.gradient_accumulation_steps()), engine.global_steps - 1
        if loss is not None and loss.device.type == "cpu":  # nothing waits for a GPU
            self._heartbeat.note(step=step, **self._loss_facts(loss, step))

    def _loss_facts(self, loss: "Tensor", step: int) -> dict[str, object]:
        """Read a loss; a Trainer leaves losses that are NaN out of its logs."""
        facts: dict[str, object] = {"step_loss": float(loss), "seen_loss_step": step}
        if self._heartbeat.counts_steps:
            facts["loss"] = facts["step_loss"]
        return facts

    def unread_loss(self) -> dict[str, object]:
        """Read the loss of the last step now that the program itself has waited for the GPU."""
        unread, self._unread = self._unread, None
        if unread is None:
            return {}
        return self._loss_facts(*unread)

    def _stepped(self, engine: "DeepSpeedEngine") -> dict[str, object]:
        accumulation = self._accumulation(engine)
        if engine.global_steps == accumulation.step:  # it accumulates
            accumulation.num_backwards = 0
            return {}
        self._accumulations[id(engine)] = _Accumulation()
        facts: dict[str, object] = {}
        if accumulation.num_discarded:
            self._num_discarded += accumulation.num_discarded
            facts["discarded_backwards"] = self._num_discarded
            facts["backwards_of_step"] = accumulation.num_backwards
        if (skipped := getattr(engine, "skipped_steps", None)) is not None:
            self._num_taken += 1
            self._num_skipped += skipped > accumulation.skipped
            facts |= {"taken_steps": self._num_taken, "skipped_steps": self._num_skipped}
        if self._leads(engine, accumulation):
            facts |= self._program_stepped(engine, accumulation)
        return facts

    def _program_stepped(self, engine: "DeepSpeedEngine", accumulation: _Accumulation) -> dict[str, object]:
        if self._profiler is not None:
            self._profiler.stepped(engine.global_steps)
        clock = self._heartbeat.clock
        facts = clock.step_ended()
        if self._profiler is not None and not self._profiler.is_recording:
            clock.count_again()
        if tokens := self._tokens.get(id(engine)):
            facts["tokens"] = tokens
        if hasattr(engine, "skipped_steps"):
            facts["idle_steps"] = self._count_idle(engine)
        scale = getattr(engine.optimizer, "loss_scale", None)  # `cur_scale` is missing at stage 0
        if engine.fp16_enabled() and scale is not None:
            facts["loss_scale"] = scale
            if self._heartbeat.get("first_loss_scale") is None:
                facts["first_loss_scale"] = scale
        now = time.monotonic()
        asks = self._num_asked < EARLY_STEPS or now - self._asked > GPU_SECONDS
        step, loss = engine.global_steps, accumulation.loss(engine.gradient_accumulation_steps())
        if loss is None:  # a pipeline knows it itself
            loss = getattr(engine, "agg_train_loss", None)
        facts |= {**_learning_rate(engine), **_grad_norm(engine, may_wait=asks)}
        if self._heartbeat.counts_steps:
            facts["step"] = step
        self._unread = None
        if loss is not None and (asks or loss.device.type == "cpu"):
            facts |= self._loss_facts(loss, step)
        elif loss is not None:
            self._unread = (loss, step)
        if asks:
            self._asked, self._num_asked = now, self._num_asked + 1
            facts |= self._gpu_peaks()
        return facts

    def _note_gpu_peaks(self) -> None:
        """Write the peaks at the end: a last step, an evaluation or a checkpoint may have been higher."""
        with contextlib.suppress(Exception):
            if (peaks := self._gpu_peaks()) and self._heartbeat.is_here():
                self._heartbeat.note(**peaks)

    def _gpu_peaks(self) -> dict[str, int]:
        """Return the highest peaks so far, as DeepSpeed resets those of torch."""
        peaks = _gpu_peaks()
        return {name: max(peak, cast("int", self._heartbeat.get(name) or 0)) for name, peak in peaks.items()}

    def _count_idle(self, engine: "DeepSpeedEngine") -> int:
        """Count the last steps whose learning rate was 0, after one at which it was not."""
        groups = getattr(engine.optimizer, "param_groups", None) or []
        rates = [group.get("lr") for group in groups]
        is_idle = bool(rates) and all(isinstance(rate, int | float) and rate == 0 for rate in rates)
        self._num_idle = self._num_idle + 1 if is_idle and self._has_learned else 0
        self._has_learned |= bool(rates) and not is_idle
        return self._num_idle


def _no_engine() -> None:
    """Stand for a reference to an engine that is gone."""


def trains(engine: object) -> bool:
    """Whether the model of an engine is in training mode; `engine.eval()` changes the model alone."""
    return bool(getattr(getattr(engine, "module", None), "training", True))


def _ranks_of_a_sequence(engine: object) -> int:
    """Count the ranks that train on the same sequences (AutoTP): each has its share of their tokens."""
    size = getattr(engine, "autotp_size", None)
    return max(1, size() or 1) if callable(size) else 1


def _overwrites(engine: "DeepSpeedEngine") -> bool:
    """Whether the engine's optimizer overwrites reduced gradients, as that of stages 1 and 2 does."""
    optimizer = engine.optimizer
    is_partitioned = type(optimizer).__name__ == "DeepSpeedZeroOptimizer"
    return is_partitioned and not getattr(optimizer, "cpu_offload", False)


def _learning_rate(engine: "DeepSpeedEngine") -> dict[str, float]:
    groups = getattr(engine.optimizer, "param_groups", None)
    if groups and isinstance(rate := groups[0].get("lr"), int | float):
        return {"learning_rate": rate}
    return {}


def _grad_norm(engine: "DeepSpeedEngine", *, may_wait: bool) -> dict[str, float]:
    """Read the norm of a step; engines have None, 0 or less where they did not compute it."""
    norm = getattr(engine, "_global_grad_norm", None)
    is_on_gpu = getattr(getattr(norm, "device", None), "type", "cpu") != "cpu"
    if norm is None or (is_on_gpu and not may_wait):
        return {}
    value = float(norm)
    if not 0 < value < math.inf:
        return {}
    return {"grad_norm": value}


def _gpu_peaks() -> dict[str, int]:
    """Read the peaks of torch's allocator, in bytes; nothing without a GPU."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return {}
    return {
        "gpu_allocated_bytes": cuda.max_memory_allocated(),
        "gpu_reserved_bytes": cuda.max_memory_reserved(),
    }
