"""What every engine of DeepSpeed imports when it is made: for a process that forks one for each engine."""

import contextlib
import functools
import importlib
import os

from tests.running import ACTIVATED

_IMPORTED_LATE = (
    "accelerate",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.zero.stage_1_and_2",
    "torch._inductor",
)
"""What training imports on its way, which takes longer than the training."""


def preload(*modules: str) -> None:
    """Import what engines need, and these modules; ask about the CPU once, not once for each optimizer.

    From then on DeepSpeed takes fp16 on the CPU: torch computes in fp16 on every CPU, and DeepSpeed asks
    for one with fast kernels, which no test should depend on.
    """
    os.environ.update(ACTIVATED)
    import cpuinfo
    from deepspeed.accelerator import get_accelerator

    for name in (*_IMPORTED_LATE, *modules):
        importlib.import_module(name)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")  # older releases have none
    cpuinfo.get_cpu_info = functools.cache(cpuinfo.get_cpu_info)
    cpuinfo.get_cpu_info()
    get_accelerator().is_fp16_supported = lambda: True
