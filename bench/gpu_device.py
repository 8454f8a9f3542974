"""Where memory is measured: a CUDA device, or the CPU in its stead when the check itself is rehearsed.

Nothing but this file knows which of the two it is.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

Figures = dict[str, int]
"""Quantity → the most of it, in bytes."""


class Device(Protocol):
    """Counts the memory of one process."""

    pools: Mapping[str, str]
    """Quantity → the pool of a forecast that it is compared with."""

    def begin(self) -> None:
        """Begin to count; nothing of this process is on the device yet."""

    def place(self) -> Any:
        """Name the device to torch."""

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Count what happens meanwhile as a phase, together with all others of its name."""

    def end(self) -> dict[str, Figures]:
        """Stop counting, and return the most that each phase held."""


class Cuda:
    """torch's own counters, and the driver's."""

    pools: Mapping[str, str] = {"allocated": "gpu", "reserved": "reserved", "pinned": "pinned"}

    def begin(self) -> None:
        """Wait until the process before has left the device, and see what else is on it."""
        self._before, last = device_use(), -1
        for _ in range(50):
            if self._before == last:
                break
            time.sleep(0.1)
            last, self._before = self._before, device_use()
        self._phases: dict[str, Figures] = {}

    def place(self) -> Any:
        """Name the device to torch."""
        import torch

        return torch.device("cuda", 0)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Read the peaks since the beginning of the phase."""
        import torch

        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_peak_host_memory_stats()
        yield
        torch.cuda.synchronize()
        reserved = torch.cuda.max_memory_reserved()
        now = {
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": reserved,
            "process": device_use() - self._before - torch.cuda.memory_reserved() + reserved,
            "pinned": torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0),
        }
        known = self._phases.setdefault(name, now)
        self._phases[name] = {quantity: max(value, known[quantity]) for quantity, value in now.items()}

    def end(self) -> dict[str, Figures]:
        """Return what was read."""
        return self._phases


class StandIn:
    """The CPU: what torch's profiler saw being allocated there."""

    pools: Mapping[str, str] = {"allocated": "pageable"}

    def begin(self) -> None:
        """Start the profiler."""
        import sys

        import deepspeed.comm.torch  # noqa: F401 - found by this name only
        import torch
        from deepspeed.accelerator import get_accelerator
        from torch._C._profiler import _ExperimentalConfig
        from torch.profiler import ProfilerActivity

        from tests.estimate.rehearsal import allocations

        allocations.mark_reading()
        get_accelerator().is_fp16_supported = lambda: True  # torch computes in it on every CPU
        comm: Any = sys.modules["deepspeed.comm.torch"]
        comm.build_shm_op = lambda: None  # nobody is there to share with
        torch.set_num_threads(1)
        self._witness = torch.profiler.profile(
            activities=[ProfilerActivity.CPU],
            profile_memory=True,
            experimental_config=_ExperimentalConfig(capture_overload_names=True),
        )
        self._witness.__enter__()

    def place(self) -> Any:
        """Name the device to torch."""
        import torch

        return torch.device("cpu")

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark the phase for the profiler."""
        from torch.profiler import record_function

        from tests.estimate.rehearsal import allocations

        with record_function(allocations.MARK + name):
            yield

    def end(self) -> dict[str, Figures]:
        """Account for what the profiler saw."""
        from tests.estimate.rehearsal import allocations

        self._witness.__exit__(None, None, None)
        found = allocations.account(self._witness.profiler.kineto_results)
        return {name: {"allocated": level.peak} for name, level in found.tensors.items()}


DEVICES: Mapping[str, type[Device]] = {"cuda": Cuda, "cpu": StandIn}


def device_use() -> int:
    """Say how much of the device is in use by anybody, as the driver counts it; bytes."""
    import pynvml

    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
