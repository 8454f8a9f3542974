"""No space left: disks, /dev/shm, open files."""

import signal

from zlaunch.diagnosis.case import Case, Reading
from zlaunch.diagnosis.log_text import matching_line
from zlaunch.diagnosis.signature import quotes, signature
from zlaunch.files import shown
from zlaunch.job.script import ConfigInterface
from zlaunch.rundir import phases
from zlaunch.units import memory, size

_ALMOST_FULL = 64 << 20
"""Bytes; with less free, the last request did not fit."""
_FULL = 1 << 20
"""Bytes; with less free, not even a traceback may have fitted."""
_RAISED = frozenset({1, 120})
"""Exit statuses of Python after an uncaught exception, and after output that could not be flushed."""
_SHM = (
    r"unable to allocate shared memory\(shm\)|insufficient shared memory|out of shared memory"
    r"|unable to (?:open|resize|write to) (?:shared memory object|file) <(?:/dev/shm)?/torch_"
    r"|(?:Error while creating|posix_fallocate|Failed to).{0,80}/dev/shm|/dev/shm[^\n]{0,120}No space left"
    r"|No space left[^\n]{0,120}/dev/shm"
)


@signature("shared-memory-full", "SIGBUS while /dev/shm is small or full; `insufficient shared memory (shm)`")
def shared_memory_full(case: Case) -> Reading | None:
    """Ranks or data loaders ran out of space in /dev/shm, which has 64 MiB in a container by default."""
    line = matching_line(_SHM, case.story)
    size, free = case.machine.get("shm_bytes"), case.machine.get("shm_free_bytes")
    crashed = case.signal == signal.SIGBUS and free is not None and free < _ALMOST_FULL
    if line is None and not crashed:
        return None
    facts: list[str | None] = []
    if free is not None and size is not None:
        facts.append(f"{free >> 20} of {size >> 20} MiB of /dev/shm were free")
    facts.append(line)
    if case.signal == signal.SIGBUS:
        facts.append("SIGBUS")
    advice = []
    if size is not None and size <= 1 << 30:
        advice.append("start the container with `--shm-size=8g` or `--ipc=host`")
    cause = f"{case.who} ran out of space in /dev/shm"
    if line is None:  # others may have filled it
        cause = f"{case.who} died with SIGBUS while /dev/shm was full, or almost"
    return Reading(cause, facts, advice)


@signature(
    "disk-full",
    "`No space left on device`, `PytorchStreamWriter failed writing`; on a full disk also SIGBUS, or an exit"
    " status without an exception",
)
def disk_full(case: Case) -> Reading | None:
    """A file could not be written because its file system is full or a disk quota is used up."""
    free = case.machine.get("disk_free_bytes")
    full = r"No space left on device|os error 28|Errno 28|ENOSPC|Disk quota exceeded|Errno 122|os error 122"
    torn = r"PytorchStreamWriter failed writing|inline_container\.cc:\d+\] \. unexpected pos"
    line = matching_line(full, case.story) or matching_line(torn, case.story)
    crashed = case.signal == signal.SIGBUS and free is not None and free < _ALMOST_FULL
    wordless = _is_wordless(case) and free is not None and free < _FULL
    if line is None and not crashed and not wordless:
        return None
    what = "a checkpoint" if case.phase == phases.SAVING else "a file"
    quota = matching_line("Disk quota exceeded|Errno 122|os error 122", case.story)
    why = "the disk quota is used up" if quota else "the disk is full"
    facts, advice = [line], list[str]()
    disk = case.evidence.save_disk
    if disk is not None and (case.phase == phases.SAVING or disk.free < _ALMOST_FULL):
        directory = shown(disk.directory)
        facts.append(f"{size(disk.free)} of {size(disk.total)} free on the file system of {directory}")
        advice = _room(case, directory)
    elif free is not None:
        facts.append(f"{memory(free)} free on the file system of the run directory")
    if line is None and wordless:
        facts.append("its exception could not be recorded")
    cause = f"{case.who} could not write {what}: {why}"
    if line is None and crashed:
        cause = f"{case.who} died with SIGBUS while the disk of the run directory was full, or almost"
    return Reading(cause, facts, advice)


def _room(case: Case, directory: str) -> list[str]:
    """Say how to make room for checkpoints before a job resumes there."""
    advice = [f"make room first: `zlaunch checkpoint prune {directory} --keep 1` lists what can go"]
    if case.job.interface is ConfigInterface.TRAINER:
        advice.append("then `-- --save_total_limit 1` keeps one, and has two while it saves")
    return advice


def _is_wordless(case: Case) -> bool:
    """Whether Python exited after an exception that was not recorded, as on a full disk."""
    return case.rank is not None and case.rank.returncode in _RAISED and case.error is None


@signature("too-many-files", "`Too many open files`")
@quotes("Too many open files")
def too_many_files(case: Case, line: str) -> Reading:
    """A process reached its limit of open files."""
    cause = f"{case.who} reached its limit of open files"
    return Reading(cause, (line,), ("run `ulimit -n 65536` first",))
