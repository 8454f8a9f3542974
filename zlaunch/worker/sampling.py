"""What a rank and its host use right now, read from the kernel and from NVML. Runs beside every rank.

What takes a while to import is imported by the first sample: the script has begun by then.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psutil


def rank_sample(process: "psutil.Process") -> dict[str, Any]:
    """Read memory, state and CPU time of a script's process; empty once it is gone."""
    import psutil

    with contextlib.suppress(psutil.Error), process.oneshot():
        times = process.cpu_times()
        return {
            "rss_bytes": process.memory_info().rss,
            "peak_rss_bytes": _peak_rss(process.pid),
            "status": process.status(),
            "cpu_seconds": round(times.user + times.system, 2),
        }
    return {}


def _peak_rss(pid: int) -> int | None:
    """Read the high-water mark of resident memory (`VmHWM`, proc(5)), in bytes."""
    text = _status_line(pid, "VmHWM")
    return None if text is None else int(text.split()[0]) * 1024


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal; one that replaced itself by another program has none."""
    text = _status_line(pid, "SigCgt")
    return text is not None and bool(int(text, 16) >> (number - 1) & 1)


def _status_line(pid: int, name: str) -> str | None:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return line.partition(":")[2].strip()
    return None


def machine_sample(directory: Path) -> dict[str, Any]:
    """Read what is left of a host's memory, of its shared memory and of the disk a directory is on."""
    import psutil

    from zlaunch.hosts.machine import tightest
    from zlaunch.hosts.probe import cgroups

    memory, group = psutil.virtual_memory(), tightest(cgroups(Path("/proc/self")))
    return {
        "memory_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "cgroup_bytes": None if group is None else group.used_bytes,
        "cgroup_limit_bytes": None if group is None else group.limit_bytes,
        "oom_kills": oom_kills(),
        **dict(disk_space("shm", Path("/dev/shm"))),  # noqa: S108 - read, not written
        **{name: value for name, value in disk_space("disk", directory) if name == "disk_free_bytes"},
    }


def disk_space(name: str, directory: Path) -> Iterator[tuple[str, int]]:
    """Read how large the file system of a directory is, and how much of it is free; nothing if it is gone."""
    with contextlib.suppress(OSError):
        stats = os.statvfs(directory)
        yield f"{name}_bytes", stats.f_blocks * stats.f_frsize
        yield f"{name}_free_bytes", stats.f_bavail * stats.f_frsize


def oom_kills() -> int | None:
    """Count the processes that the kernel has killed for want of memory, on this host since it started."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


class GpuSampler:
    """Asks NVML about the GPU of one rank; says nothing where there is no driver."""

    def __init__(self, visible: str | None, local_rank: int) -> None:
        """`visible` is CUDA_VISIBLE_DEVICES of the rank."""
        self._handle: Any = None
        import pynvml

        with contextlib.suppress(pynvml.NVMLError, IndexError, ValueError):
            pynvml.nvmlInit()
            device = local_rank if visible is None else visible.split(",")[local_rank].strip()
            by_number = str(device).isdecimal()
            self._handle = (
                pynvml.nvmlDeviceGetHandleByIndex(int(device))
                if by_number
                else pynvml.nvmlDeviceGetHandleByUUID(device)
            )

    def sample(self) -> dict[str, Any] | None:
        """Read used and whole memory, in bytes, and the errors of the memory that were not corrected."""
        if self._handle is None:
            return None
        import pynvml

        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(self._handle)
        except pynvml.NVMLError:
            return None
        found = {"used_bytes": int(memory.used), "total_bytes": int(memory.total)}
        with contextlib.suppress(pynvml.NVMLError):
            found["uncorrected_errors"] = int(
                pynvml.nvmlDeviceGetTotalEccErrors(
                    self._handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
                )
            )
        return found
