"""Probe this machine: the driver and the file system; neither torch nor deepspeed is imported."""

import contextlib
import getpass
import os
import platform
import re
import resource
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from zlaunch.errors import Unavailable
from zlaunch.files import nearest
from zlaunch.hosts.machine.interpreter import Interpreter
from zlaunch.hosts.machine.resources import (
    Cgroup,
    Disk,
    Driver,
    FreeResources,
    Gpu,
    GpuProcess,
    Machine,
    has_bf16_instructions,
    has_fp16_kernels,
    tightest,
)


def probe_machine(environ: Mapping[str, str], python: Interpreter) -> Machine:
    """What this machine has; raise Unavailable if an interpreter's torch cannot use its GPUs."""
    gpus: list[Gpu] = []
    driver: Driver | None = None
    is_cpu_asked = environ.get("DS_ACCELERATOR") == "cpu"
    if not is_cpu_asked:
        gpus, driver = _gpus()
    visible = _visible(gpus, environ.get("CUDA_VISIBLE_DEVICES"))
    if visible and not torch_release(python).startswith("cu"):
        version = python.versions(["torch"])["torch"]
        raise Unavailable(
            f"this machine has {len(gpus)} GPUs, but torch {version} was built without CUDA",
            "install a CUDA build of torch, or set DS_ACCELERATOR=cpu to train on the CPU",
        )
    cpuinfo, architecture = _read_text(Path("/proc/cpuinfo")), platform.machine()
    return Machine(
        hostname=socket.gethostname(),
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        gpus=tuple(visible),
        hidden_gpus=tuple(gpu.index for gpu in gpus if gpu not in visible),
        cpu_fp16=has_fp16_kernels(cpuinfo, architecture),
        cpu_bf16=has_bf16_instructions(cpuinfo, architecture),
        driver=driver,
        is_cpu_asked=is_cpu_asked,
    )


def torch_release(python: Interpreter) -> str:
    """What an interpreter's torch was built for, as torch names it in its cache: `cu128`, `rocm63`, `cpu`."""
    for name, short in (("hip", "rocm"), ("cuda", "cu")):
        if (release := _torch_was_built_for(name, python)) is not None:
            return short + release.replace(".", "")
    return "cpu"


def cuda_of_torch(python: Interpreter) -> str | None:
    """The CUDA release that an interpreter's torch was built for, as `12.8`; None for another build."""
    return _torch_was_built_for("cuda", python)


def _torch_was_built_for(name: str, python: Interpreter) -> str | None:
    source = (python.folder("torch") / "version.py").read_text("utf-8")
    release = re.search(rf"^{name}\b[^=]*=\s*['\"]([^'\"]+)", source, re.MULTILINE)
    return release[1] if release else None


def _gpus() -> tuple[list[Gpu], Driver | None]:
    """All GPUs that NVML knows, and their driver; none without an NVIDIA driver."""
    has_device = Path("/dev/nvidiactl").exists()
    try:
        import pynvml
    except ImportError:
        if not has_device:
            return [], None
        hint = f"`{sys.executable} -m pip install nvidia-ml-py`"
        raise Unavailable("cannot list the GPUs: zlaunch's own Python lacks pynvml", hint) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if not has_device:
            return [], None
        raise _silent(error) from None
    try:
        return [_gpu(index) for index in range(pynvml.nvmlDeviceGetCount())], _driver()
    except pynvml.NVMLError as error:
        raise _silent(error) from None
    finally:
        pynvml.nvmlShutdown()


def _driver() -> Driver | None:
    import pynvml

    with contextlib.suppress(pynvml.NVMLError, AttributeError):  # old releases of pynvml ask for less
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        return Driver(str(pynvml.nvmlSystemGetDriverVersion()), f"{cuda // 1000}.{cuda % 1000 // 10}")
    return None


def _silent(error: Exception) -> Unavailable:
    hint = "check whether `nvidia-smi` works, or set DS_ACCELERATOR=cpu to train on the CPU"
    return Unavailable(f"there is an NVIDIA device, but its driver does not answer: {error}", hint)


def _gpu(index: int) -> Gpu:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    return Gpu(
        index=index,
        name=str(pynvml.nvmlDeviceGetName(handle)),
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        memory_bytes=int(memory.total),
        compute_capability=tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        free_bytes=int(memory.free),
        processes=tuple(_gpu_processes(handle)),
    )


def _gpu_processes(handle: object) -> Iterator[GpuProcess]:
    """The processes on a GPU; none if the driver does not report them, as on MIG devices."""
    import pynvml

    try:
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return
    for process in processes:
        used = process.usedGpuMemory
        yield GpuProcess(process.pid, *_program_and_user(process.pid), None if used is None else int(used))


def _program_and_user(pid: int) -> tuple[str | None, str | None]:
    """A process's program and user, without arguments, which may be secret."""
    import psutil

    try:
        process = psutil.Process(pid)
        words, user = process.cmdline() or [process.name()], process.username()
    except psutil.Error:
        return None, None
    script = [Path(word).name for word in words[1:2] if not word.startswith("-")]
    return " ".join([Path(words[0]).name, *script]), user


def _visible(gpus: Sequence[Gpu], selection: str | None) -> list[Gpu]:
    """Apply CUDA_VISIBLE_DEVICES: numbers or prefixes of UUIDs, up to the first that does not exist."""
    if selection is None:
        return list(gpus)
    visible: list[Gpu] = []
    for term in selection.split(","):
        name = term.strip()
        is_uuid = name.startswith("GPU-")
        chosen = [gpu for gpu in gpus if name == str(gpu.index) or (is_uuid and gpu.uuid.startswith(name))]
        if not chosen and name.startswith(("GPU-", "MIG-")):
            raise Unavailable(
                f"CUDA_VISIBLE_DEVICES names `{name}`, which is not a GPU here", "name GPUs by number"
            )
        if not chosen:
            break
        visible += chosen
    return visible


def free_resources(paths: Iterable[Path], proc: Path = Path("/proc")) -> FreeResources:
    """What is free on this machine now, and on the file systems of these paths."""
    memory, shm = _sizes_in(proc / "meminfo"), Path("/dev/shm")  # noqa: S108 - it is asked about
    return FreeResources(
        memory_bytes=memory.get("MemAvailable"),
        swap_bytes=memory.get("SwapFree", 0),
        cgroup=tightest_cgroup(proc / "self"),
        shm=disk_of(shm) if shm.is_dir() else None,
        shm_left_bytes=sum(_sizes_of(shm.glob("deepspeed_allreduce_buffer_*"))),
        memlock_bytes=_memlock(proc / "self"),
        has_infiniband=any(Path("/sys/class/infiniband").glob("*")),
        disks={path: disk for path in paths if (disk := disk_of(path)) is not None},
        user=_user(),
    )


def _sizes_of(files: Iterable[Path]) -> Iterator[int]:
    """Sizes of files; one may be deleted in between."""
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            yield file.stat().st_size


def disk_of(path: Path) -> Disk | None:
    """The file system of a path, which need not exist; None if it is unknown."""
    existing = nearest(path)
    try:
        space, device = os.statvfs(existing), existing.stat().st_dev
    except OSError:
        return None
    is_writable = os.access(existing, os.W_OK | os.X_OK)
    return Disk(device, space.f_frsize * space.f_blocks, space.f_frsize * space.f_bavail, is_writable)


_UNLIMITED = 1 << 60
"""Version 1 of cgroups reports a number like this if there is no limit."""
_CAP_IPC_LOCK = 14


def cgroups(process: Path) -> Iterator[Cgroup]:
    """The groups that limit a process's memory, its own first; `process` is its directory in /proc."""
    for directory, mount in _memory_groups(process):
        group = directory
        while group.is_relative_to(mount):
            if (limit := _cgroup(group)) is not None:
                yield limit
            group = group.parent


def tightest_cgroup(process: Path) -> Cgroup | None:
    """The group that leaves a process the least memory; None without a limit."""
    return tightest(cgroups(process))


def oom_kills_in_group(process: Path) -> int | None:
    """Count the processes of a process's own group that the kernel has killed for lack of memory.

    None if that is not counted, or if the group has all processes of the machine: version 2 does not count
    them.
    """
    is_root = re.search(r"^\d+:(?:\S+,)?memory(?:,\S+)?:/$", _read_text(process / "cgroup"), re.MULTILINE)
    for group, _ in _memory_groups(process):
        counted = _sizes_in(group / "memory.events", unit=1)
        if not is_root:
            counted |= _sizes_in(group / "memory.oom_control", unit=1)
        if "oom_kill" in counted:
            return counted["oom_kill"]
    return None


def _memory_groups(process: Path) -> Iterator[tuple[Path, Path]]:
    """A process's group in each hierarchy that counts memory, and the mount point of that."""
    lines = _read_text(process / "cgroup").splitlines()
    groups = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    mounts = [line.partition(" - ") for line in _read_text(process / "mountinfo").splitlines()]
    for _, controllers, path in groups:
        for before, _, after in mounts:
            if _is_counting(controllers, after.split()):
                root, mount = before.split()[3:5]
                yield Path(mount) / _below(path, root), Path(mount)


def _is_counting(controllers: str, mounted: Sequence[str]) -> bool:
    """Whether a mount is the hierarchy of these controllers, and counts memory."""
    if not controllers:
        return mounted[:1] == ["cgroup2"]
    counts = "memory" in controllers.split(",")
    return counts and mounted[:1] == ["cgroup"] and "memory" in mounted[-1].split(",")


def _below(path: str, root: str) -> str:
    """A group's path below the mount; a container may see only its own group, as the mount."""
    if ".." in path or not Path(path).is_relative_to(root):
        return "."
    return str(Path(path).relative_to(root))


def _cgroup(directory: Path) -> Cgroup | None:
    """Read a group of either version; None if it does not limit memory."""
    kept = _sizes_in(directory / "memory.stat", unit=1)
    for limit_file, used_file, prefix in (
        ("memory.max", "memory.current", ""),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    ):
        limit, used = _read_text(directory / limit_file).strip(), _read_text(directory / used_file).strip()
        if limit.isdecimal() and used.isdecimal() and int(limit) < _UNLIMITED:
            files = sum(kept.get(f"{prefix}{name}", 0) for name in ("active_file", "inactive_file"))
            return Cgroup(str(directory), int(limit), max(0, int(used) - files))
    return None


def _sizes_in(file: Path, unit: int = 1024) -> dict[str, int]:
    """Read lines of a name and a number, as in /proc/meminfo and memory.stat."""
    words = [line.replace(":", " ").split() for line in _read_text(file).splitlines()]
    return {name: int(rest[0]) * unit for name, *rest in filter(None, words) if rest and rest[0].isdecimal()}


def _memlock(process: Path) -> int | None:
    """How much memory a process may lock; None without a limit, as with CAP_IPC_LOCK."""
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)", _read_text(process / "status"), re.MULTILINE)
    if capabilities and int(capabilities.group(1), 16) >> _CAP_IPC_LOCK & 1:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _user() -> str:
    with contextlib.suppress(KeyError, OSError):
        return getpass.getuser()
    return ""


def _read_text(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text("utf-8", "replace")
    return ""
