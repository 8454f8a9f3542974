"""Out of memory on the host or on a GPU."""

import re
import signal

from zlaunch.diagnosis.advice import less_gpu_memory, less_host_memory, named_in, setting
from zlaunch.diagnosis.case import Case, Reading
from zlaunch.diagnosis.log_text import matching_line
from zlaunch.diagnosis.signature import quotes, signature
from zlaunch.estimate.changes import BUCKET, SMALL_BUCKET
from zlaunch.estimate.forecast import written_peak, written_resident
from zlaunch.rundir import phases
from zlaunch.units import gib, whole

_SIZE = r"([\d.]+ (?:bytes|[KMGT]i?B))"
_ASKED = rf"out of memory\. Tried to allocate {_SIZE}"
_OF_THE_GPU = re.compile(
    rf"total capacity of {_SIZE} of which {_SIZE} is free|{_SIZE} total capacity;.*?{_SIZE} free"
)
_HELD = re.compile(rf"{_SIZE} is allocated by PyTorch|{_SIZE} already allocated")
_BETWEEN = rf"{_SIZE} is reserved by PyTorch but unallocated"
_OTHERS = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_UNITS = {"bytes": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40, "KB": 10, "MB": 20, "GB": 30, "TB": 40}


@signature(
    "host-out-of-memory",
    "SIGKILL of a rank or the launcher, and an `oom_kill` counted in the job's own control group",
)
def host_out_of_memory(case: Case) -> Reading | None:
    """The kernel killed a rank or the launcher because the host or its container ran out of memory."""
    machine, victim = case.machine, _killed(case)
    if victim is None or not (kills := case.oom_kills.group):
        return None
    limit, total = machine.get("cgroup_limit_bytes"), machine.get("memory_bytes")
    if limit is not None and (total is None or limit < total):
        why = f"its container reached its limit of {gib(limit)} GiB of memory"
    else:
        why = "the host ran out of memory"
    facts = (
        f"`oom_kill` of the job's control group rose by {kills}",
        _peaks(case),
        memory_left(case),
    )
    return Reading(f"the kernel killed {victim} because {why}", facts, less_host_memory(case))


def _killed(case: Case) -> str | None:
    """Name what was killed; a rank that is lost with its launcher may not have been the cause."""
    if case.signal == signal.SIGKILL and case.error is None:
        return case.who
    lost = case.rank is None or case.rank.returncode is None
    was_killed = case.evidence.launcher_returncode == -signal.SIGKILL and not case.evidence.was_ended
    if lost and was_killed:
        return "the launcher"
    return None


def _peaks(case: Case) -> str | None:
    if case.rank is None:
        return None
    here = [rank for rank in case.evidence.ranks if rank.host == case.rank.host]
    peaks = [f"{gib(rank.peak_rss_bytes)} (rank {rank.rank})" for rank in here if rank.peak_rss_bytes]
    if not peaks:
        return None
    text = f"peak RSS in GiB: {', '.join(peaks[:4])}"
    predicted = written_resident(case.job.forecast or {}, case.job.accelerator != "cpu")
    if predicted is not None:
        text += f"; predicted: {gib(predicted)} each"
    return text


def memory_left(case: Case) -> str | None:
    """Say how much memory was left on the host of the rank, or in its control group, at the last sample."""
    machine = case.machine
    limit, used = machine.get("cgroup_limit_bytes"), machine.get("cgroup_bytes")
    if limit is not None and used is not None:
        return f"{gib(used)} of {gib(limit)} GiB in use at the last sample"
    total, available = machine.get("memory_bytes"), machine.get("memory_available_bytes")
    if total is not None and available is not None:
        return f"{gib(available)} of {gib(total)} GiB of the host were available at the last sample"
    return None


@signature("pinned-memory", "`out of memory` in `pin_memory` or cudaHostAlloc; `mlock failed to allocate`")
def pinned_memory(case: Case) -> Reading | None:
    """Pinned host memory could not be allocated; CUDA reports this as out of memory."""
    locked = matching_line(r"mlock failed to allocate|Failed to mlock", case.story)
    through_pinning = re.search(r"out of memory|MemoryError|invalid argument", case.words) and re.search(
        r"pin_memory\(|cudaHostAlloc|cudaHostRegister|CachingHostAllocator|pin_tensor", case.story
    )
    if named_in(case.words, _ASKED) or not (locked or through_pinning):
        return None
    pinned = []
    for key in ("offload_optimizer", "offload_param"):
        device = setting(case.job.config, "zero_optimization", key, "device")
        is_pageable = setting(case.job.config, "zero_optimization", key, "pin_memory") is False
        if device in {"cpu", "nvme"} and not is_pageable:
            pinned.append(f"--set zero_optimization.{key}.pin_memory=false")
    facts = (
        locked,
        matching_line(r"out of memory|MemoryError|invalid argument", case.words),
        memory_left(case),
    )
    advice = []
    if pinned:
        advice.append(f"`{' '.join(pinned)}`: use pageable memory")
    cause = f"{case.who} could not allocate page-locked host memory; the GPU is not full"
    return Reading(cause, facts, advice)


@signature("gpu-out-of-memory", "`out of memory. Tried to allocate`, with torch's figures")
def gpu_out_of_memory(case: Case) -> Reading | None:
    """A GPU ran out of memory."""
    asked, between = named_in(case.words, _ASKED), named_in(case.words, _BETWEEN)
    if asked is None and not re.search(
        r"OutOfMemoryError|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY", case.words
    ):
        return None
    total = free = None
    if sizes := _OF_THE_GPU.search(case.words):
        total, free = filter(None, sizes.groups())
    facts = (
        _wanted(asked, total, free) or matching_line("out of memory|OutOfMemory", case.words),
        _torch_holds(case, between),
        matching_line(r"pytorch allocator cache flushes", case.log) or _predicted(case),
    )
    advice = (
        *_on_the_same_gpu(case.words, asked, free),
        *_fits_unfragmented(case.words, asked, free, between),
        *_smaller_bucket(case, asked),
        *less_gpu_memory(case),
    )
    return Reading(f"the GPU of {case.who} ran out of memory", facts, advice[:3])


def _wanted(asked: str | None, total: str | None, free: str | None) -> str | None:
    if asked is None:
        return None
    if total and free:
        return f"tried to allocate {asked}; {free} of {total} were free"
    return f"tried to allocate {asked}"


def _torch_holds(case: Case, between: str | None) -> str | None:
    if held := _HELD.search(case.words):
        tensors = f"torch held {held.group(1) or held.group(2)} in tensors"
        return f"{tensors} and {between} in its cache" if between else tensors
    if case.rank is not None and (allocated := case.rank.heartbeat.get("gpu_allocated_bytes", 0)) > 0:
        return f"{gib(allocated)} GiB in tensors at the peak"
    return None


def _predicted(case: Case) -> str | None:
    if predicted := written_peak(case.job.forecast or {}, ("gpu",)):
        return f"{gib(predicted)} GiB of tensors predicted"
    return None


def _fits_unfragmented(
    words: str, asked: str | None, free: str | None, between: str | None
) -> tuple[str, ...]:
    if not (asked and between) or num_bytes(between) + num_bytes(free or "0 bytes") < num_bytes(asked):
        return ()
    variable = named_in(words, r"(PYTORCH_\w*ALLOC_CONF)=expandable") or "PYTORCH_CUDA_ALLOC_CONF"
    return (f"`{variable}=expandable_segments:True`: enough memory was free, but fragmented",)


def _on_the_same_gpu(words: str, asked: str | None, free: str | None) -> tuple[str, ...]:
    missing = num_bytes(asked or "0 bytes") - num_bytes(free or "0 bytes")
    for pid, held in _OTHERS.findall(words):
        if num_bytes(held) >= max(missing, 1):
            return (f"process {pid} holds {held} of this GPU: end it, or `--exclude` the GPU",)
    return ()


def _smaller_bucket(case: Case, asked: str | None) -> tuple[str, ...]:
    """Recognize ZeRO's bucket by its size; elements of two or four bytes."""
    elements = whole(setting(case.job.config, "zero_optimization", "reduce_bucket_size")) or 0
    if not asked or elements <= SMALL_BUCKET or case.phase != phases.BACKWARD:
        return ()
    if not any(abs(num_bytes(asked) - width * elements) < 0.02 * width * elements for width in (2, 4)):
        return ()
    return (f"`--set {BUCKET}={SMALL_BUCKET}`: the failed allocation was a bucket",)


def num_bytes(size: str) -> int:
    """Read a size as torch writes it."""
    number, _, unit = size.partition(" ")
    try:
        return int(float(number) * (1 << _UNITS.get(unit, 0)))
    except ValueError:
        return 0


@signature(
    "host-allocation-failed", "`DefaultCPUAllocator: can't allocate memory`, MemoryError, std::bad_alloc"
)
def host_allocation_failed(case: Case) -> Reading | None:
    """Host memory could not be allocated: a limit of the process, or too little memory without overcommit."""
    pattern = (
        r"DefaultCPUAllocator: (?:can't|not enough)|^\w*MemoryError|std::bad_alloc"
        r"|Unable to allocate [\d.]+ \w+ for"
        r"|[Cc]annot allocate memory"
    )
    line = matching_line(f"(?m){pattern}", case.words)
    if line is None or case.signal not in {None, signal.SIGABRT}:
        return None
    facts = (line, _peaks(case), memory_left(case))
    return Reading(f"{case.who} could not allocate host memory", facts, less_host_memory(case))


@signature("too-many-processes", "`can't start new thread`, `Resource temporarily unavailable`")
@quotes(r"can't start new thread|Resource temporarily unavailable|fork: retry")
def too_many_processes(case: Case, line: str) -> Reading:
    """A thread or process could not be started: a limit of the user or the container."""
    return Reading(f"{case.who} could not start another thread or process", (line,))
