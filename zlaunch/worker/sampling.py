"""Sample the resources that a rank and its host use, from the kernel and from NVML. Runs beside every rank.

Slow packages are imported by the first sample: the script has started by then.
"""

import contextlib
import os
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

from zlaunch.rundir.record import GpuSample, MachineSample, SampleRecord

if TYPE_CHECKING:
    import psutil

COMPILERS = frozenset(
    ("cc1", "cc1plus", "clang", "clang++", "cicc", "cudafe++", "ptxas", "as", "ld", "ld.lld", "lld", "hipcc")
)
"""Programs that do the work of `gcc`, `nvcc` and `ninja`, which wait for them."""

COMPILE_WORKER = "torch/_inductor/compile_worker"
"""In the command line of the processes in which `torch.compile` compiles."""


def rank_sample(process: "psutil.Process") -> SampleRecord:
    """Read memory, state and CPU time of a script's process; empty once it has ended."""
    import psutil

    with contextlib.suppress(psutil.Error), process.oneshot():
        times, peak_bytes = process.cpu_times(), None
        if (peak := _status_line(process.pid, "VmHWM")) is not None:  # in KiB, proc(5)
            peak_bytes = int(peak.split()[0]) * 1024
        return {
            "rss_bytes": process.memory_info().rss,
            "peak_rss_bytes": peak_bytes,
            "status": process.status(),
            "cpu_seconds": round(times.user + times.system, 2),
        }
    return {}


def is_compiling(process: "psutil.Process") -> bool:
    """Whether a compiler works below a process, as for `torch.compile` or a native op.

    torch keeps processes that wait for something to compile, so only those that compute now count.
    """
    import psutil

    with contextlib.suppress(psutil.Error):
        return any(_compiles(child) for child in process.children(recursive=True))
    return False


def _compiles(process: "psutil.Process") -> bool:
    import psutil

    with contextlib.suppress(psutil.Error):
        if process.status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP):
            return process.name() in COMPILERS or COMPILE_WORKER in " ".join(process.cmdline())
    return False


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal; after `exec` it has none."""
    text = _status_line(pid, "SigCgt")
    return text is not None and bool(int(text, 16) >> (number - 1) & 1)


def _status_line(pid: int, name: str) -> str | None:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return line.partition(":")[2].strip()
    return None


def machine_sample(directory: Path) -> MachineSample:
    """Read the memory of a host, its shared memory and the free space of the disk of a directory."""
    import psutil

    memory, used, limit = psutil.virtual_memory(), None, None
    if (group := _probe().tightest_cgroup(Path("/proc/self"))) is not None:
        used, limit = group.used_bytes, group.limit_bytes
    shm_bytes, shm_free = disk_space(Path("/dev/shm"))  # noqa: S108 - read, not written
    return {
        "memory_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "cgroup_bytes": used,
        "cgroup_limit_bytes": limit,
        "shm_bytes": shm_bytes,
        "shm_free_bytes": shm_free,
        "disk_free_bytes": disk_space(directory)[1],
    }


def _probe() -> ModuleType:
    from zlaunch.hosts.machine import probe  # only when the script has started

    return probe


def disk_space(directory: Path) -> tuple[int, int] | tuple[None, None]:
    """Read size and free bytes of the file system of a directory; None if it is gone."""
    with contextlib.suppress(OSError):
        stats = os.statvfs(directory)
        return stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize
    return None, None


class OomKills(NamedTuple):
    """How many processes the kernel has killed for lack of memory; None where that is not counted."""

    group: int | None
    """Those in the control group of this process, since the group was made."""
    machine: int | None
    """Those of anybody on this host, since it was booted."""

    def since(self, before: "OomKills") -> "OomKills":
        """Count only later ones."""
        return OomKills(_difference(self.group, before.group), _difference(self.machine, before.machine))


NOT_COUNTED = OomKills(None, None)


def _difference(now: int | None, before: int | None) -> int | None:
    if now is None or before is None:
        return None
    return now - before


def oom_kills() -> OomKills:
    """Read the counters of the kernel."""
    machine = None
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                machine = int(line.split()[1])
    return OomKills(_probe().oom_kills_in_group(Path("/proc/self")), machine)


class GpuSampler:
    """Samples the GPU of one rank through NVML; None where there is no driver, or no package for it."""

    def __init__(self, visible: str | None, local_rank: int) -> None:
        """`visible` is CUDA_VISIBLE_DEVICES of the rank."""
        self._handle: object = None
        try:
            import pynvml
        except ImportError:  # zlaunch was installed without it
            return
        with contextlib.suppress(pynvml.NVMLError, IndexError, ValueError):
            pynvml.nvmlInit()
            device = str(local_rank)
            if visible is not None:
                device = visible.split(",")[local_rank].strip()
            if device.isdecimal():
                self._handle = pynvml.nvmlDeviceGetHandleByIndex(int(device))
            else:
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(device)

    def sample(self) -> GpuSample | None:
        """Read used and total memory, and the uncorrected memory errors."""
        if self._handle is None:
            return None
        import pynvml

        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(self._handle)
        except pynvml.NVMLError:
            return None
        found: GpuSample = {"used_bytes": int(memory.used), "total_bytes": int(memory.total)}
        with contextlib.suppress(pynvml.NVMLError):
            found["uncorrected_errors"] = int(
                pynvml.nvmlDeviceGetTotalEccErrors(
                    self._handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
                )
            )
        return found
