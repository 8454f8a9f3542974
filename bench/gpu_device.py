"""Memory counters of a CUDA device, and of the CPU to test the check without a GPU."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol
from unittest import mock

from zlaunch.estimate.forecast import Pool

Figures = dict[str, int]
"""Quantity → peak in bytes."""


class Device(Protocol):
    """Counts the memory of one process."""

    pools: Mapping[str, Pool]
    """Quantity → pool of the forecast."""

    def begin(self) -> None:
        """Start to count, before this process uses the device."""

    def place(self) -> Any:
        """Return the `torch.device`."""

    def wait(self) -> None:
        """Wait until the device is idle."""

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Count the memory of everything inside as a phase, which may occur several times."""

    def end(self) -> dict[str, Figures]:
        """Stop counting; return the peaks of each phase."""


class Cuda:
    """Counters of torch and of the driver."""

    pools: Mapping[str, Pool] = {"allocated": "gpu", "reserved": "reserved", "pinned": "pinned"}

    def begin(self) -> None:
        """Wait until the memory of the previous process is freed, and record what others use."""
        self._before, last = device_use(), -1
        for _ in range(50):
            if self._before == last:
                break
            time.sleep(0.1)
            last, self._before = self._before, device_use()
        self._phases: dict[str, Figures] = {}

    def place(self) -> Any:
        """Return the `torch.device`."""
        import torch

        return torch.device("cuda", 0)

    def wait(self) -> None:
        """Wait for all kernels."""
        import torch

        torch.cuda.synchronize()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record the peaks of the phase."""
        import torch

        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_peak_host_memory_stats()
        with mock.patch.object(torch.cuda, "reset_peak_memory_stats"):  # DeepSpeed resets them to log them
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
        """Return the recorded peaks."""
        return self._phases


class StandIn:
    """The CPU: allocations recorded by torch's profiler."""

    pools: Mapping[str, Pool] = {"allocated": "pageable"}

    def begin(self) -> None:
        """Start the profiler."""
        import sys

        import deepspeed.comm.torch  # noqa: F401 - for sys.modules
        import torch
        from deepspeed.accelerator import get_accelerator
        from torch._C._profiler import _ExperimentalConfig
        from torch.profiler import ProfilerActivity

        from tests.estimate.rehearsal import allocations

        allocations.mark_reading()
        get_accelerator().is_fp16_supported = lambda: True  # torch supports it on every CPU
        comm: Any = sys.modules["deepspeed.comm.torch"]
        comm.build_shm_op = lambda: None  # there are no other ranks
        torch.set_num_threads(1)
        self._profile = torch.profiler.profile(
            activities=[ProfilerActivity.CPU],
            profile_memory=True,
            experimental_config=_ExperimentalConfig(capture_overload_names=True),
        )
        self._profile.__enter__()

    def place(self) -> Any:
        """Return the `torch.device`."""
        import torch

        return torch.device("cpu")

    def wait(self) -> None:
        """Return at once: the CPU has finished when a call returns."""

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark the phase in the profile."""
        from torch.profiler import record_function

        from tests.estimate.rehearsal import allocations

        with record_function(allocations.MARK + name):
            yield

    def end(self) -> dict[str, Figures]:
        """Evaluate the profile."""
        from tests.estimate.rehearsal import allocations

        self._profile.__exit__(None, None, None)
        found = allocations.account(self._profile.profiler.kineto_results)
        return {name: {"allocated": level.peak} for name, level in found.tensors.items()}


DEVICES: Mapping[str, type[Device]] = {"cuda": Cuda, "cpu": StandIn}


def device_use() -> int:
    """Return the memory of the device that is in use by any process, from the driver; bytes."""
    import pynvml

    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
