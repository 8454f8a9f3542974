"""The resources of a machine, total and free."""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from zlaunch.errors import Unavailable
from zlaunch.frozen import dataclass

if TYPE_CHECKING:  # other hosts need none of it
    from zlaunch.job.spec import Precision

IDLE_BYTES = 2 << 30
"""More than a driver holds on an idle GPU."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A program that holds memory on a GPU."""

    pid: int
    """As the driver counts them; in a container the number may be meaningless."""
    command: str | None = None
    """None if the process is invisible from here."""
    user: str | None = None
    used_bytes: int | None = None
    """None if the driver does not report it."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, numbered as `nvidia-smi` numbers it."""

    index: int
    name: str
    uuid: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    free_bytes: int | None = None
    """None if it was not read."""
    processes: tuple[GpuProcess, ...] = ()

    @property
    def is_busy(self) -> bool:
        """Whether it is in use, if only by processes that are invisible from here."""
        used = 0 if self.free_bytes is None else self.memory_bytes - self.free_bytes
        return bool(self.processes) or used > IDLE_BYTES


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver of the GPUs."""

    release: str
    cuda: str
    """The newest CUDA release whose programs it runs, as `12.8`."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine."""

    hostname: str
    num_cores: int
    """Cores this process may use; 0 if that is unknown."""
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    """The GPUs that `CUDA_VISIBLE_DEVICES` leaves visible, in its order."""
    hidden_gpus: tuple[int, ...] = ()
    """The GPUs that it hides."""
    cpu_fp16: bool | None = None
    """Whether DeepSpeed trains in fp16 on its CPU; None if that is unknown."""
    cpu_bf16: bool | None = None
    """Whether its CPU has instructions for bf16; None if that is unknown."""
    driver: Driver | None = None
    """None without GPUs, and if it does not tell its release."""
    is_cpu_asked: bool = False
    """Whether DS_ACCELERATOR=cpu asks for its CPU: nobody looked for GPUs."""

    @property
    def why_cpu(self) -> str:
        """Why a job trains on the CPU, if `accelerator` is `cpu`."""
        if self.is_cpu_asked:
            return "zlaunch was started with DS_ACCELERATOR=cpu"
        if self.hidden_gpus:
            return "CUDA_VISIBLE_DEVICES hides all GPUs"
        return "no NVIDIA GPU was found"

    @property
    def accelerator(self) -> str:
        """The accelerator by its DeepSpeed name: `cuda` or `cpu`."""
        return "cuda" if self.gpus else "cpu"

    @property
    def has_fp16(self) -> bool | None:
        """Whether DeepSpeed trains in fp16 here, on the GPUs or without any on the CPU."""
        return True if self.gpus else self.cpu_fp16

    @property
    def device(self) -> str:
        """What decides the best precision, in words."""
        if self.gpus:
            return self.gpus[0].name
        if self.cpu_bf16 is False:
            return "a CPU without instructions for bf16"
        return "a CPU"

    @property
    def best_precision(self) -> "Precision":
        """The best training precision: bf16 from Ampere on and on CPUs that have it, fp16 from Volta on.

        Source: `deepspeed/accelerator/cuda_accelerator.py` (compute capability 8 and 7) and
        `cpu_accelerator.py`, which supports bf16 on every CPU. Without instructions for it, a step takes 20
        to 40 times as long as in fp32.
        """
        if not self.gpus:
            return "fp32" if self.cpu_bf16 is False else "bf16"
        capability = min(gpu.compute_capability for gpu in self.gpus)
        if capability >= (8, 0):
            return "bf16"
        return "fp16" if capability >= (7, 0) else "fp32"


def has_fp16_kernels(cpuinfo: str, architecture: str) -> bool | None:
    """Whether oneDNN has fp16 kernels for a CPU, by /proc/cpuinfo; None if that is unknown.

    DeepSpeed's CPU accelerator asks torch for these (`is_mkldnn_fp16_supported`), and refuses fp16 without.
    """
    return _has_any(cpuinfo, architecture, {"x86_64": ("flags", {"avx512_fp16", "avx_ne_convert"})})


def has_bf16_instructions(cpuinfo: str, architecture: str) -> bool | None:
    """Whether a CPU has instructions for bf16, by /proc/cpuinfo; None if that is unknown."""
    of_x86 = {"amx_bf16", "avx512_bf16", "avx_ne_convert"}
    return _has_any(cpuinfo, architecture, {"x86_64": ("flags", of_x86), "aarch64": ("Features", {"bf16"})})


def _has_any(cpuinfo: str, architecture: str, wanted: Mapping[str, tuple[str, Set[str]]]) -> bool | None:
    """Whether a CPU has one of the flags that are wanted of its architecture; None if that is unknown."""
    if architecture not in wanted:
        return None
    name, flags = wanted[architecture]
    line = re.search(rf"^{name}\s*:(.*)$", cpuinfo, re.MULTILINE)
    if line is None:
        return None
    return not flags.isdisjoint(line[1].split())


def local_names(hostname: str) -> frozenset[str]:
    """All names that this machine may have in a hostfile."""
    return frozenset({"localhost", "127.0.0.1", hostname})


def weakest(machines: Sequence[Machine]) -> Machine:
    """The common resources of all machines; raise Unavailable if only some have GPUs."""
    without = [machine.hostname for machine in machines if not machine.gpus]
    if without and len(without) < len(machines):
        raise Unavailable(f"some hosts have GPUs, but not {', '.join(without)}", "leave them out")
    return replace(
        min(machines, key=_weakest_gpu),
        num_cores=min(machine.num_cores for machine in machines),
        memory_bytes=min(machine.memory_bytes for machine in machines),
        cpu_fp16=_all_have({machine.cpu_fp16 for machine in machines}),
        cpu_bf16=_all_have({machine.cpu_bf16 for machine in machines}),
    )


def _all_have(answers: Set[bool | None]) -> bool | None:
    if False in answers:
        return False
    return None if None in answers else True


def _weakest_gpu(machine: Machine) -> tuple[tuple[int, int], int]:
    """Its oldest GPU, and of several the one with the least memory."""
    return min(((gpu.compute_capability, gpu.memory_bytes) for gpu in machine.gpus), default=((0, 0), 0))


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A control group that limits memory."""

    path: str
    limit_bytes: int
    used_bytes: int
    """Without the page cache, which the kernel drops when memory is short."""

    @property
    def free_bytes(self) -> int:
        """How much more memory the group may use."""
        return max(0, self.limit_bytes - self.used_bytes)


def tightest(cgroups: Iterable[Cgroup]) -> Cgroup | None:
    """The group with the least free memory: a process is in its own and in all above; None if none limits."""
    return min(cgroups, key=lambda cgroup: cgroup.free_bytes, default=None)


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system, and what this user may write there."""

    device: int
    """Paths with the same number share their free space."""
    total_bytes: int
    free_bytes: int
    is_writable: bool = True


@dataclass(frozen=True)
class FreeResources:
    """The free resources of a machine now; unknown ones are None."""

    memory_bytes: int | None = None
    """MemAvailable."""
    swap_bytes: int = 0
    cgroup: Cgroup | None = None
    """The one with the least free memory; None if none limits."""
    shm: Disk | None = None
    shm_left_bytes: int = 0
    """In buffers of DeepSpeed's CPU ranks in /dev/shm, which it never deletes."""
    memlock_bytes: int | None = None
    """What a process may lock; None without a limit."""
    has_infiniband: bool = False
    disks: Mapping[Path, Disk] = field(default_factory=dict)
    """Path → its file system."""
    user: str = ""

    @property
    def available_bytes(self) -> int | None:
        """Memory that a job can get: what is available, and what the cgroup allows."""
        limits = [self.memory_bytes, None if self.cgroup is None else self.cgroup.free_bytes]
        return min((limit for limit in limits if limit is not None), default=None)
