"""Compare what a job needs on a machine with what is free there.

Findings are late if the job would fail after its model is loaded, and advice if it may work.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from zlaunch.checks.tracking import check_reporter, unknown_reporters
from zlaunch.errors import Finding, Severity
from zlaunch.hosts.machine.resources import Cgroup, Disk, FreeResources, Gpu, GpuProcess
from zlaunch.launch.requirements import DiskUse, ResourceRequirements
from zlaunch.units import gib, plural

CONTAINER_SHM_BYTES = 64 << 20
"""Size of /dev/shm in a container by default."""

RECOMMENDED_SHM = "1g"
"""What NVIDIA recommends for NCCL in containers (NCCL user guide, "Troubleshooting")."""

LEAST_SHM_BYTES = 2 << 20
"""What the small messages of a CPU rank take there."""

_MIB = 1 << 20
_SHM = "/dev/shm"  # noqa: S108 - nothing is written there


def check_resources(needs: ResourceRequirements, free: FreeResources) -> tuple[Finding, ...]:
    """Find everything that is short, late findings first."""
    found = [
        *_gpus(needs, free),
        *_memory(needs, free),
        *_shm(needs, free),
        *_memlock(needs, free),
        *_disks(needs, free),
        *(finding for monitor in needs.monitors for finding in check_reporter(monitor, free.missing)),
        *unknown_reporters(needs.args),
    ]
    return tuple(sorted(found, key=lambda finding: finding.severity is Severity.ADVICE))


def _gpus(needs: ResourceRequirements, free: FreeResources) -> Iterator[Finding]:
    # Whether an idle GPU is large enough is for the memory estimate.
    for gpu in (one for one in needs.gpus if one.is_busy):
        need, left = needs.gpu_bytes, gpu.free_bytes
        is_short = need is not None and left is not None and need > left
        holders = (
            ", ".join(_holder(process) for process in gpu.processes)
            or "a process that is not visible from here"
        )
        parts = [f"GPU {gpu.index} is in use: {holders}"]
        if left is not None:
            parts.append(f"{gib(left)} of {gib(gpu.memory_bytes)} GiB are free")
        if need is not None:
            parts.append(f"this job needs at least {gib(need)}")
        hint = _another_gpu(gpu, needs, free.user)
        yield Finding("gpu-busy", "; ".join(parts), hint, severity=_severity(is_short))


def _holder(process: GpuProcess) -> str:
    name = "an unknown process" if process.command is None else f"`{process.command}`"
    user = f" of {process.user}" if process.user else ""
    held = "" if process.used_bytes is None else f" uses {gib(process.used_bytes)} GiB"
    return f"{name}{user} (pid {process.pid}){held}"


def _another_gpu(gpu: Gpu, needs: ResourceRequirements, user: str) -> str:
    own = [str(process.pid) for process in gpu.processes if process.command and process.user == user]
    words = [f"`kill {' '.join(own)}` ends your processes"] if own else []
    if len(needs.idle) >= len(needs.gpus):
        devices = ",".join(map(str, needs.idle[: len(needs.gpus)]))
        words.append(f"`--gpus {devices}{',' * (len(needs.gpus) == 1)}` uses idle GPUs")
    return ", ".join(words) or "wait until `nvidia-smi` shows that it is free"


def _memory(needs: ResourceRequirements, free: FreeResources) -> Iterator[Finding]:
    need, available = needs.memory, free.available_bytes
    if need is None or available is None or need.likely <= available:
        return
    group = free.cgroup if free.cgroup is not None and free.cgroup.free_bytes == available else None
    cannot = need.least > available + free.swap_bytes
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
    return f"{gib(available)} GiB are left of the limit of {gib(group.limit_bytes)} GiB of {group.path}"


def _more_memory(need: int, available: int, group: Cgroup | None) -> str:
    if group is None:
        return (
            f"free {gib(need - available)} GiB: `ps aux --sort=-rss | head` shows the processes that use most"
        )
    limit = -(-(group.used_bytes + need) // (1 << 30))
    return f"raise the limit: `docker run --memory {limit}g`, `memory: {limit}Gi`, or `memory.max` itself"


def _shm(needs: ResourceRequirements, free: FreeResources) -> Iterator[Finding]:
    """Compare the buffers of CPU ranks with /dev/shm.

    DeepSpeed maps whole buffers: without any free space it crashes at once, with too little as soon as a
    larger message comes.
    """
    shm = free.shm
    if shm is None:
        return
    if needs.shm_bytes > shm.free_bytes:
        size = -(-(needs.shm_bytes + shm.total_bytes - shm.free_bytes) // _MIB)
        message = (
            f"with DeepSpeed's launcher, {plural(needs.ranks, 'CPU rank')} communicate through {_SHM}, which "
            f"takes {needs.shm_bytes // _MIB} MiB; "
            f"{shm.free_bytes // _MIB} of {shm.total_bytes // _MIB} are free"
        )
        dies = shm.free_bytes < needs.ranks * LEAST_SHM_BYTES
        hint = f"`mount -o remount,size={size}m {_SHM}`, `docker run --shm-size {size}m`"
        hint += "" if needs.over_ssh else ", or `--launcher torchrun`"
        if free.shm_left_bytes:
            left = f"`rm {_SHM}/deepspeed_allreduce_buffer_*` frees {_mib(free.shm_left_bytes)}"
            hint = f"{left} if no DeepSpeed job is running; {hint}"
        yield Finding("shm-too-small", message, hint, severity=_severity(dies))
    elif needs.shm_users and shm.total_bytes <= CONTAINER_SHM_BYTES:
        users = " and ".join(needs.shm_users)
        verb = "passes" if needs.shm_users == ("NCCL",) or users.startswith("1 ") else "pass"
        yield Finding(
            "shm-too-small",
            f"{_SHM} has only {shm.total_bytes // _MIB} MiB, the default of containers; "
            f"{users} {verb} data through it",
            f"`docker run --shm-size {RECOMMENDED_SHM}`, or `--ipc=host`",
            severity=Severity.ADVICE,
        )


def _memlock(needs: ResourceRequirements, free: FreeResources) -> Iterator[Finding]:
    """Compare mlock'ed buffers with the limit; cudaHostAlloc does not count against it."""
    limit = free.memlock_bytes
    if limit is None:
        return
    if needs.locked_bytes > limit:
        yield Finding(
            "memlock-too-small",
            f"each rank locks {_mib(needs.locked_bytes)} of buffers for NVMe, but the limit of a process is "
            f"{_mib(limit)}: DeepSpeed aborts",
            "`ulimit -l unlimited` as root, or `docker run --ulimit memlock=-1`; or start with smaller "
            "buffers, `--set zero_optimization.offload_param.buffer_size=N`",
            severity=Severity.FAILS_LATER,
        )
    elif needs.crosses_hosts and free.has_infiniband:
        yield Finding(
            "memlock-too-small",
            f"a process may lock only {_mib(limit)}; NCCL locks its buffers for InfiniBand",
            "`ulimit -l unlimited` on every host, in /etc/security/limits.conf for ssh",
            severity=Severity.ADVICE,
        )


def _disks(needs: ResourceRequirements, free: FreeResources) -> Iterator[Finding]:
    placed = [(free.disks[one.path], one) for one in needs.writes if one.path in free.disks]
    placed.sort(key=lambda pair: pair[0].device)
    for _, group in groupby(placed, key=lambda pair: pair[0].device):
        pairs = list(group)
        disk, uses = pairs[0][0], [use for _, use in pairs]
        if sum(one.num_bytes for one in uses) > disk.free_bytes:
            yield _full(disk, uses)
        elif sum(max(one.num_bytes, one.over_run) for one in uses) > disk.free_bytes:
            yield _fills_up(disk, max(uses, key=lambda one: one.over_run))


def _full(disk: Disk, uses: Sequence[DiskUse]) -> Finding:
    """List the largest first; the record of a run is mentioned only if nothing else is written."""
    largest = sorted(uses, key=lambda one: -one.num_bytes)
    named = [one for one in largest if one.num_bytes > largest[0].num_bytes // 100]
    takes = ", ".join(f"{_mib(one.num_bytes)} for {one.what}" for one in named)
    left = f"{_mib(disk.free_bytes)} are free" if disk.total_bytes else "nothing can be stored"
    return Finding(
        "disk-too-small",
        f"{left} on the file system of `{named[0].path}`, but the job needs {takes}",
        f"use {' or '.join(one.elsewhere for one in named)} on a larger disk",
        severity=Severity.FAILS_LATER,
    )


def _fills_up(disk: Disk, use: DiskUse) -> Finding:
    """Warn of a disk that has room for the first of several checkpoints."""
    return Finding(
        "disk-too-small",
        f"{_mib(disk.free_bytes)} are free on the file system of `{use.path}`, but the checkpoints of the "
        f"whole run need {_mib(use.over_run)}, at {_mib(use.num_bytes)} each",
        "`-- --save_total_limit 1` keeps the newest alone; a larger `--save_steps` saves less often",
        severity=Severity.ADVICE,
    )


def _severity(fails: bool) -> Severity:
    return Severity.FAILS_LATER if fails else Severity.ADVICE


def _mib(num_bytes: int) -> str:
    return f"{gib(num_bytes)} GiB" if num_bytes >= 1 << 30 else f"{num_bytes / _MIB:.1f} MiB"
