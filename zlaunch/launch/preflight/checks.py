"""Whether a machine has, at this moment, what a job will take from it.

What cannot work is late: the job would fail after its model is loaded. What might not is advice.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from zlaunch.errors import Finding, Severity
from zlaunch.hosts.machine import Cgroup, Disk, FreeResources, Gpu, GpuProcess
from zlaunch.launch.preflight.reporters import check_reporter, unknown_reporters
from zlaunch.launch.preflight.requirements import DiskUse, ResourceRequirements
from zlaunch.units import gib, plural

CONTAINER_SHM_BYTES = 64 << 20
"""What containers have in /dev/shm if nobody asked for more."""

RECOMMENDED_SHM = "1g"
"""What NVIDIA tells users of NCCL in containers to ask for (NCCL's user guide, "Troubleshooting")."""

LEAST_SHM_BYTES = 2 << 20
"""What a CPU rank's small messages take there."""

_MIB = 1 << 20
_SHM = "/dev/shm"  # noqa: S108 - nothing is written there


def check_resources(demand: ResourceRequirements, room: FreeResources) -> tuple[Finding, ...]:
    """Find everything that is short, the worst first."""
    found = [
        *_gpus(demand, room),
        *_memory(demand, room),
        *_shm(demand, room),
        *_memlock(demand, room),
        *_disks(demand, room),
        *(finding for monitor in demand.monitors for finding in check_reporter(monitor, room.missing)),
        *unknown_reporters(demand.script_args),
    ]
    return tuple(sorted(found, key=lambda finding: finding.severity is Severity.ADVICE))


def _gpus(demand: ResourceRequirements, room: FreeResources) -> Iterator[Finding]:
    """Name who is on each GPU of the job; what others hold cannot be had."""
    for gpu in demand.gpus:
        need, free = demand.gpu_bytes, gpu.free_bytes
        is_short = need is not None and free is not None and need > free
        # A GPU that nobody uses and that is too small is the business of the estimate.
        if not gpu.is_busy:
            continue
        holders = ", ".join(_holder(process) for process in gpu.processes) or "a program that cannot be seen"
        parts = [f"GPU {gpu.index} is in use: {holders}"]
        if free is not None:
            parts.append(f"{gib(free)} of {gib(gpu.memory_bytes)} GiB are free")
        if need is not None:
            parts.append(f"this job takes at least {gib(need)}")
        yield Finding(
            "gpu-busy",
            "; ".join(parts),
            _another_gpu(gpu, demand, room.user),
            severity=_severity(is_short),
        )


def _holder(process: GpuProcess) -> str:
    name = "a process that cannot be seen" if process.command is None else f"`{process.command}`"
    user = f" of {process.user}" if process.user else ""
    held = "" if process.used_bytes is None else f" holds {gib(process.used_bytes)} GiB"
    return f"{name}{user} (pid {process.pid}){held}"


def _another_gpu(gpu: Gpu, demand: ResourceRequirements, user: str) -> str:
    own = [str(process.pid) for process in gpu.processes if process.command and process.user == user]
    words = [f"`kill {' '.join(own)}` ends what is yours"] if own else []
    if len(demand.idle) >= len(demand.gpus):
        devices = ",".join(map(str, demand.idle[: len(demand.gpus)]))
        words.append(f"`--gpus {devices}{',' * (len(demand.gpus) == 1)}` takes idle ones")
    return ", ".join(words) or "`nvidia-smi` shows when it is free"


def _memory(demand: ResourceRequirements, room: FreeResources) -> Iterator[Finding]:
    """Compare what the ranks take with what is available here, and what the control group leaves."""
    need, available = demand.memory, room.available_bytes
    if need is None or available is None or need.likely <= available:
        return
    group = room.cgroup if room.cgroup is not None and room.cgroup.free_bytes == available else None
    cannot = need.least > available + room.swap_bytes
    bytes_needed = need.least if need.least > available else need.likely
    verb = "take at least" if need.least > available else "may take"
    yield Finding(
        "host-memory-short",
        f"{need.why} {verb} {gib(bytes_needed)} GiB of memory; {_left(available, group)}",
        _more_memory(bytes_needed, available, group),
        severity=_severity(cannot),
    )


def _left(available: int, group: Cgroup | None) -> str:
    if group is None:
        return f"{gib(available)} GiB are available"
    return f"{gib(available)} GiB are left of the {gib(group.limit_bytes)} that {group.path} may use"


def _more_memory(need: int, available: int, group: Cgroup | None) -> str:
    if group is None:
        return f"free {gib(need - available)} GiB: `ps aux --sort=-rss | head` shows who holds them"
    limit = -(-(group.used_bytes + need) // (1 << 30))
    return f"raise the limit: `docker run --memory {limit}g`, `memory: {limit}Gi`, or `memory.max` itself"


def _shm(demand: ResourceRequirements, room: FreeResources) -> Iterator[Finding]:
    """Compare /dev/shm with what is known to be written there.

    DeepSpeed maps what it could write there: with nothing written it crashes at once, and with a part of
    it as soon as a larger message comes.
    """
    shm = room.shm
    if shm is None:
        return
    if demand.shm_bytes > shm.free_bytes:
        size = -(-(demand.shm_bytes + shm.total_bytes - shm.free_bytes) // _MIB)
        message = (
            f"DeepSpeed's launcher lets {plural(demand.ranks, 'CPU rank')} talk through {_SHM}, which takes "
            f"{demand.shm_bytes // _MIB} MiB; {shm.free_bytes // _MIB} of {shm.total_bytes // _MIB} are free"
        )
        dies = shm.free_bytes < demand.ranks * LEAST_SHM_BYTES
        hint = f"`mount -o remount,size={size}m {_SHM}`, `docker run --shm-size {size}m`"
        hint += "" if demand.over_ssh else ", or `--launcher torchrun`"
        if room.shm_left_bytes:
            left = f"`rm {_SHM}/deepspeed_allreduce_buffer_*` gives back {_mib(room.shm_left_bytes)}"
            hint = f"{left} if no job of DeepSpeed runs; {hint}"
        yield Finding("shm-too-small", message, hint, severity=_severity(dies))
    elif demand.shm_users and shm.total_bytes <= CONTAINER_SHM_BYTES:
        users = " and ".join(demand.shm_users)
        verb = "passes" if demand.shm_users == ("NCCL",) or users.startswith("1 ") else "pass"
        yield Finding(
            "shm-too-small",
            f"{_SHM} has {shm.total_bytes // _MIB} MiB, as containers do; {users} {verb} data through it",
            f"`docker run --shm-size {RECOMMENDED_SHM}`, or `--ipc=host`",
            severity=Severity.ADVICE,
        )


def _memlock(demand: ResourceRequirements, room: FreeResources) -> Iterator[Finding]:
    """Compare the limit of locked memory with what counts against it, which cudaHostAlloc does not."""
    limit = room.memlock_bytes
    if limit is None:
        return
    if demand.locked_bytes > limit:
        yield Finding(
            "memlock-too-small",
            f"each rank locks {_mib(demand.locked_bytes)} of buffers for NVMe, and a process may lock "
            f"{_mib(limit)}: DeepSpeed aborts",
            "`ulimit -l unlimited` as root, or `docker run --ulimit memlock=-1`; or start with smaller "
            "buffers, `--set zero_optimization.offload_param.buffer_size=N`",
            severity=Severity.LATE,
        )
    elif demand.crosses_hosts and room.has_infiniband:
        yield Finding(
            "memlock-too-small",
            f"a process may lock {_mib(limit)}; what NCCL sends over InfiniBand is locked",
            "`ulimit -l unlimited` on every host, in /etc/security/limits.conf for ssh",
            severity=Severity.ADVICE,
        )


def _disks(demand: ResourceRequirements, room: FreeResources) -> Iterator[Finding]:
    """Compare each file system with all that is to be written there."""
    placed = [(room.disks[one.path], one) for one in demand.writes if one.path in room.disks]
    placed.sort(key=lambda pair: pair[0].device)
    for _, group in groupby(placed, key=lambda pair: pair[0].device):
        pairs = list(group)
        disk, writings = pairs[0][0], [writing for _, writing in pairs]
        if sum(one.num_bytes for one in writings) > disk.free_bytes:
            yield _full(disk, writings)


def _full(disk: Disk, writings: Sequence[DiskUse]) -> Finding:
    """Name what takes the most first; the record of a run is worth a word only where it is all."""
    largest = sorted(writings, key=lambda one: -one.num_bytes)
    told = [one for one in largest if one.num_bytes > largest[0].num_bytes // 100]
    takes = ", ".join(f"{_mib(one.num_bytes)} for {one.what}" for one in told)
    left = f"{_mib(disk.free_bytes)} are free" if disk.total_bytes else "nothing can be kept"
    return Finding(
        "disk-too-small",
        f"{left} where `{told[0].path}` is; needed are {takes}",
        f"{' or '.join(one.elsewhere for one in told)} on a larger disk",
        severity=Severity.LATE,
    )


def _severity(fails: bool) -> Severity:
    return Severity.LATE if fails else Severity.ADVICE


def _mib(num_bytes: int) -> str:
    return f"{gib(num_bytes)} GiB" if num_bytes >= 1 << 30 else f"{num_bytes / _MIB:.1f} MiB"
