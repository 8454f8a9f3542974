"""Checks of the memory of a host: what is free, /dev/shm, and what may be locked."""

from collections.abc import Iterator

from zlaunch.checks.requirements import Amount, Requirements
from zlaunch.checks.result import CheckResult, Status, judged
from zlaunch.errors import Finding, Severity
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.resources import Cgroup, Disk, FreeResources
from zlaunch.units import gib, memory, mib, plural

SHM = "/dev/shm"  # noqa: S108 - nothing is written there

CONTAINER_SHM_BYTES = 64 << 20
"""Size of /dev/shm in a container by default."""

RECOMMENDED_SHM = "1g"
"""What NVIDIA recommends for NCCL in containers (NCCL user guide, "Troubleshooting")."""

LEAST_SHM_BYTES = 2 << 20
"""What the small messages of a CPU rank take there."""

_MIB = 1 << 20


def host_memory(facts: MachineFacts, needs: Requirements) -> Iterator[CheckResult]:
    """Compare the memory that is available with what the ranks take."""
    if facts.hardware is not None:
        yield CheckResult("CPU cores", Status.OK, str(facts.hardware.num_cores))
    free = facts.free
    if free is None or (available := free.available_bytes) is None:
        return
    status, text, group = Status.OK, f"{memory(available)} available", free.cgroup
    if group is not None and group.free_bytes > available:
        group = None
    if group is not None:
        text = f"{memory(available)} left of a limit of {memory(group.limit_bytes)} ({group.path})"
        status = Status.NOTE
    elif facts.hardware is not None:
        text = f"{memory(available)} of {memory(facts.hardware.memory_bytes)} available"
    if needs.memory is not None and needs.memory.likely > available:
        finding = _memory_finding(needs.memory, available, free.swap_bytes, group)
        yield judged("memory", text, finding, amount=available)
    else:
        yield CheckResult("memory", status, text, amount=available)


def _memory_finding(need: Amount, available: int, swap: int, group: Cgroup | None) -> Finding:
    num_bytes, verb = need.likely, "may take"
    if need.least > available:
        num_bytes, verb = need.least, "take at least"
    return Finding(
        "host-memory-short",
        f"{need.why} {verb} {gib(num_bytes)} GiB of memory; {_available_text(available, group)}",
        _more_memory(num_bytes, available, group),
        severity=_severity(need.least > available + swap),
    )


def _available_text(available: int, group: Cgroup | None) -> str:
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


def shared_memory(facts: MachineFacts, needs: Requirements) -> Iterator[CheckResult]:
    """Compare /dev/shm with the buffers of CPU ranks, and with what NCCL and dataloader workers need.

    DeepSpeed maps whole buffers: without any free space it crashes at once, with too little as soon as a
    larger message comes.
    """
    if facts.free is None:
        return
    shm, left = facts.free.shm, facts.free.shm_left_bytes
    if shm is None:
        text = "it does not exist; NCCL and dataloader workers need it"
        yield CheckResult(SHM, Status.WARNING, text)
        return
    text, finding = f"{memory(shm.free_bytes)} of {memory(shm.total_bytes)} free", None
    if needs.shm_bytes > shm.free_bytes:
        yield judged(SHM, text, _too_small(needs, shm, facts.free), amount=shm.free_bytes)
    elif shm.free_bytes > CONTAINER_SHM_BYTES:
        yield CheckResult(SHM, Status.OK, text, amount=shm.free_bytes)
    else:
        hint = f"`docker run --shm-size {RECOMMENDED_SHM}`, or `mount -o remount,size=1g {SHM}`"
        if left:
            hint += f"; `rm {SHM}/deepspeed_allreduce_buffer_*` frees {memory(left)}"
        text += "; NCCL and dataloader workers may need more"
        if needs.shm_users:
            finding = _of_a_container(needs, shm)
        yield CheckResult(SHM, Status.WARNING, text, hint, shm.free_bytes, finding)


def _too_small(needs: Requirements, shm: Disk, free: FreeResources) -> Finding:
    size = -(-(needs.shm_bytes + shm.total_bytes - shm.free_bytes) // _MIB)
    message = (
        f"with DeepSpeed's launcher, {plural(needs.ranks, 'CPU rank')} communicate through {SHM}, which "
        f"takes {needs.shm_bytes // _MIB} MiB; "
        f"{shm.free_bytes // _MIB} of {shm.total_bytes // _MIB} are free"
    )
    hint = f"`mount -o remount,size={size}m {SHM}`, `docker run --shm-size {size}m`"
    if not needs.spans_hosts:
        hint += ", or `--launcher torchrun`"
    if free.shm_left_bytes:
        left = f"`rm {SHM}/deepspeed_allreduce_buffer_*` frees {mib(free.shm_left_bytes)}"
        hint = f"{left} if no DeepSpeed job is running; {hint}"
    dies = shm.free_bytes < needs.ranks * LEAST_SHM_BYTES
    return Finding("shm-too-small", message, hint, severity=_severity(dies))


def _of_a_container(needs: Requirements, shm: Disk) -> Finding:
    users, verb = " and ".join(needs.shm_users), "pass"
    if needs.shm_users == ("NCCL",) or users.startswith("1 "):
        verb = "passes"
    size = f"{SHM} has only {shm.total_bytes // _MIB} MiB, the default of containers"
    if shm.total_bytes > CONTAINER_SHM_BYTES:
        size = f"only {shm.free_bytes // _MIB} of {shm.total_bytes // _MIB} MiB of {SHM} are free"
    return Finding(
        "shm-too-small",
        f"{size}; {users} {verb} data through it",
        f"`docker run --shm-size {RECOMMENDED_SHM}`, or `--ipc=host`",
        severity=Severity.ADVICE,
    )


def locked_memory(facts: MachineFacts, needs: Requirements) -> Iterator[CheckResult]:
    """Compare mlock'ed buffers with the limit; cudaHostAlloc does not count against it."""
    if facts.free is None:
        return
    limit, locked = facts.free.memlock_bytes, needs.locked_bytes
    if limit is None:
        yield CheckResult("locked memory", Status.OK, "no limit")
        return
    finding, users = None, []
    if needs.uses_infiniband and facts.free.has_infiniband:
        finding = _infiniband(limit)
        users.append("InfiniBand")
    if locked is None:
        users.insert(0, "NVMe offload")
    elif locked > limit:
        finding = _buffers_for_nvme(locked, limit)
        users.insert(0, "NVMe offload")
    text, hint = f"limited to {memory(limit)}", "`ulimit -l unlimited`, or `docker run --ulimit memlock=-1`"
    if users:
        text += f", too little for {' and '.join(users)}"
    if finding is not None:
        yield judged("locked memory", text, finding, hint)
    elif users:
        yield CheckResult("locked memory", Status.WARNING, text, hint)
    else:
        yield CheckResult("locked memory", Status.OK, text)


def _buffers_for_nvme(locked: int, limit: int) -> Finding:
    return Finding(
        "memlock-too-small",
        f"each rank locks {mib(locked)} of buffers for NVMe, but the limit of a process is "
        f"{mib(limit)}: DeepSpeed aborts",
        "`ulimit -l unlimited` as root, or `docker run --ulimit memlock=-1`; or start with smaller "
        "buffers, `--set zero_optimization.offload_param.buffer_size=N`",
        severity=Severity.FAILS_LATER,
    )


def _infiniband(limit: int) -> Finding:
    return Finding(
        "memlock-too-small",
        f"a process may lock only {mib(limit)}; NCCL locks its buffers for InfiniBand",
        "`ulimit -l unlimited` on every host, in /etc/security/limits.conf for ssh",
        severity=Severity.ADVICE,
    )


def _severity(fails: bool) -> Severity:
    if fails:
        return Severity.FAILS_LATER
    return Severity.ADVICE
