"""Measure the time of a step by part: each phase, and what of it is waiting for data or communication.

All time belongs to exactly one part, so the parts add up to the steps. On a GPU the host's clock tells when
kernels were launched, not when they ran: there, the marks of some steps are events on the GPU, too.
"""

import _thread
import contextlib
import functools
import itertools
import sys
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from zlaunch.rundir import phases
from zlaunch.worker.hook.imports import unseen, without_first

if TYPE_CHECKING:
    import torch

_PASSES: Final = (phases.FORWARD, phases.BACKWARD)
WARM_UP: Final = 2
"""Steps that are not counted: they compile, allocate, and record the order of the layers."""
GPU_SAMPLE_SECONDS: Final = 5.0
"""How often a step is measured with events on the GPU."""

_SWAPPER = "deepspeed.runtime.swap_tensor"
_SWAPS = ("swap_in_optimizer_state", "swap_out_optimizer_state", "swap_out_gradients", "flush_gradients")
_OFFLOADED = ("async_accumulate_grad_in_cpu_via_gpu", "async_inplace_copy_grad_to_fp32_buffer_from_gpu")
_COLLECTIVES = (
    *(
        "all_reduce",
        "reduce",
        "broadcast",
        "barrier",
        "all_gather",
        "all_gather_into_tensor",
        "reduce_scatter",
    ),
    *("reduce_scatter_tensor", "all_to_all", "all_to_all_single", "send", "recv", "all_reduce_coalesced"),
    *("all_gather_coalesced", "all_gather_object", "broadcast_object_list", "Work.wait"),
)

PARTS: Final[Mapping[str, Mapping[str, str]]] = {
    "torch.utils.data.dataloader": {"_BaseDataLoaderIter.__next__": phases.DATA},
    "torch.distributed.distributed_c10d": dict.fromkeys(_COLLECTIVES, phases.COMMUNICATION),
    "torch.cuda.streams": {"Stream.wait_stream": phases.COMMUNICATION},
    f"{_SWAPPER}.partitioned_optimizer_swapper": {
        f"PartitionedOptimizerSwapper.{name}": phases.SWAPPING for name in _SWAPS
    },
    f"{_SWAPPER}.pipelined_optimizer_swapper": {
        f"PipelinedOptimizerSwapper.{name}": phases.SWAPPING for name in _SWAPS
    },
    f"{_SWAPPER}.partitioned_param_swapper": {
        f"AsyncPartitionedParameterSwapper.{name}": phases.SWAPPING
        for name in ("swap_in", "swap_out_and_release", "synchronize_reads", "synchronize_writes")
    },
    "deepspeed.runtime.zero.stage_1_and_2": {
        f"DeepSpeedZeroOptimizer.{name}": phases.COPYING for name in _OFFLOADED
    },
}
"""Module → function → the part of a step that its time belongs to."""


class StepClock:
    """Seconds of this process in each part since its start."""

    def __init__(self) -> None:
        self._thread = _thread.get_ident()
        self._phase = self._part = ""
        self._mark = time.perf_counter()
        self._cpu_mark = time.thread_time()
        self.spent: dict[str, float] = {}
        self._busy = 0.0
        """Seconds of the passes since the warm-up in which the main thread had a CPU."""
        self._num_steps = 0
        self._trained = 0.0
        """Seconds in all parts of steps when the last step ended."""
        self._start: dict[str, float] = {}
        """`spent` when the warm-up was over."""
        self._gpu: _GpuClock | None = None
        self._left_out: dict[str, float] | None = None
        """`spent` when steps began that do not count, while they last."""
        self._busy_before = 0.0

    @property
    def phase(self) -> str:
        """The phase that is timed: of an evaluation in a loop of the script's own, not that of its engine."""
        return self._phase

    def leave_out(self) -> None:
        """Do not count the steps from here on: something other than training makes them slow."""
        if self._left_out is None:
            self._begin(self._part)
            self._left_out, self._busy_before = dict(self.spent), self._busy
            if self._gpu is not None:
                self._gpu.discard()

    def count_again(self) -> None:
        """Count steps from here on."""
        if self._left_out is not None:
            self._begin(self._part)
            for part, value in self.spent.items():
                self._start[part] = self._start.get(part, 0.0) + value - self._left_out.get(part, 0.0)
            self._left_out, self._busy = None, self._busy_before
            self._trained = sum(self.spent.get(part, 0.0) for part in phases.OF_A_STEP)

    def enter_phase(self, phase: str) -> None:
        """End the current part, and begin a phase."""
        before, self._phase = self._phase, phase
        if before in _PASSES or phase in _PASSES:  # a call of the kernel, which takes time itself
            cpu = time.thread_time()
            if before in _PASSES:
                self._busy += cpu - self._cpu_mark
            self._cpu_mark = cpu
        self._begin(phase)

    def enter(self, part: str) -> str | None:
        """Begin a part of a phase of a step, and return the one to go back to; None if it is not counted.

        During the backward pass on a GPU, the main thread waits while another one calls the hooks.
        """
        phase = self._phase
        if phase not in phases.STEPS or (phase != phases.BACKWARD and _thread.get_ident() != self._thread):
            return None
        outer = self._part
        self._begin(part)
        return outer

    def leave(self, outer: str) -> None:
        """End a part."""
        self._begin(outer)

    def _begin(self, part: str) -> None:
        now, before = time.perf_counter(), self._part
        self.spent[before] = self.spent.get(before, 0.0) + now - self._mark
        self._part, self._mark = part, now
        if self._gpu is not None:
            self._gpu.mark(part)

    def step_ended(self) -> dict[str, object]:
        """Take in the end of a step; return facts about the time of all steps since the warm-up."""
        self._begin(self._part)
        if self._left_out is not None:
            return {}
        self._num_steps += 1
        training = sum(self.spent.get(part, 0.0) for part in phases.OF_A_STEP)
        took, self._trained = training - self._trained, training
        if self._num_steps <= WARM_UP:
            self._start, self._busy = dict(self.spent), 0.0
            return {}
        if self._num_steps == WARM_UP + 1:
            self._gpu = _gpu_clock()
        before = self._start
        seconds = {part: round(value - before.get(part, 0.0), 4) for part, value in self.spent.items()}
        facts: dict[str, object] = {
            "timed_steps": self._num_steps - WARM_UP,
            "step_seconds": round(took, 6),
            "parts": {part: value for part, value in seconds.items() if value},
        }
        computing = sum(seconds.get(part, 0.0) for part in _PASSES)  # without waiting, which takes no CPU
        if computing > 0:
            facts["busy"] = min(1.0, round(self._busy / computing, 3))
        if self._gpu is not None:
            facts |= self._gpu.step_ended(self._part)
        return facts

    def watch(self, module: ModuleType) -> None:
        """Time the functions of a module."""
        for path, part in PARTS[module.__name__].items():
            *holder, name = path.split(".")
            with contextlib.suppress(AttributeError, TypeError):
                owner: Any = functools.reduce(getattr, holder, module)
                setattr(owner, name, self._timed(getattr(owner, name), part))

    def _timed(self, function: Callable[..., object], part: str) -> Callable[..., object]:
        enter, leave = self.enter, self.leave

        @functools.wraps(function)
        def timed(*args: object, **kwargs: object) -> object:
            outer = enter(part)
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                if outer is not None:
                    leave(outer)
                error.__traceback__ = without_first(error)
                raise
            if outer is not None:
                leave(outer)
            return result

        return unseen(timed)


class _GpuClock:
    """Marks some steps with events on the GPU, and reads them when they have passed: nothing waits."""

    def __init__(self, cuda: ModuleType) -> None:
        self._cuda = cuda
        self._stream = cuda.current_stream()
        """Other streams overlap with it: what waits there delays no step."""
        self._marks: list[tuple[str, torch.cuda.Event]] = []
        self._passing: list[tuple[str, torch.cuda.Event]] = []
        self._is_marking = False
        self._marked = 0.0
        self._seconds: dict[str, float] = {}
        self._num_steps = 0
        self._facts: dict[str, object] = {"device": cuda.get_device_name()}
        self._retries = self._count_retries()
        """Those of the warm-up."""

    def mark(self, part: str) -> None:
        """Note on the GPU that a part begins."""
        if not self._is_marking:
            return
        with contextlib.suppress(Exception):  # a surprise here must not reach the script
            if self._cuda.current_stream() == self._stream:
                event = self._cuda.Event(enable_timing=True)
                event.record()
                self._marks.append((part, event))

    def discard(self) -> None:
        """Forget the marks of the current step."""
        self._is_marking, self._marks = False, []

    def step_ended(self, part: str) -> dict[str, object]:
        """Read a marked step, and begin to mark the next if it is time; `part` is the current one."""
        if self._is_marking:
            self.mark(part)
            self._is_marking, self._passing, self._marks = False, self._marks, []
        with contextlib.suppress(Exception):
            self._read()
        now = time.monotonic()
        if not self._passing and now - self._marked > GPU_SAMPLE_SECONDS:
            self._is_marking, self._marked = True, now
            self.mark(part)
        if not self._num_steps:
            return {}
        seconds = {name: round(value, 4) for name, value in self._seconds.items()}
        return {"gpu_steps": self._num_steps, "gpu_parts": seconds, **self._facts}

    def _count_retries(self) -> int:
        return int(self._cuda.memory_stats().get("num_alloc_retries", 0))

    def _read(self) -> None:
        if not self._passing or not self._passing[-1][1].query():
            return
        passed, self._passing = self._passing, []
        self._num_steps += 1
        self._facts["allocator_retries"] = self._count_retries() - self._retries
        for (part, begin), (_, end) in itertools.pairwise(passed):
            self._seconds[part] = self._seconds.get(part, 0.0) + begin.elapsed_time(end) / 1000


def _gpu_clock() -> _GpuClock | None:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    with contextlib.suppress(Exception):  # a surprise here must not reach the script
        return _GpuClock(cuda)
    return None
