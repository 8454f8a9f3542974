"""Checks of the file systems that a job writes to."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from zlaunch.checks.requirements import DiskUse, Requirements
from zlaunch.checks.result import CheckResult, Status, judged
from zlaunch.errors import Finding, Severity
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.resources import Disk
from zlaunch.units import memory, mib

HERE, TEMPORARY = "this directory", "temporary files"
"""Directories that jobs write to."""
DISK = "disk-too-small"
LEAST_BYTES = 1 << 30


def disks(facts: MachineFacts, needs: Requirements) -> Iterator[CheckResult]:
    """Find disks that are full, or that this job fills."""
    if facts.free is None:
        return
    there = facts.free.disks
    short = dict(_too_small(needs.writes, there))
    for name, path in needs.directories.items():
        if path in there:
            yield _directory_check(name, path, there[path], short.pop(path, None))
    for path, finding in short.items():
        yield judged(f"disk: {path}", _room(path, there[path]), finding)


def _room(path: Path, disk: Disk) -> str:
    return f"{memory(disk.free_bytes)} of {memory(disk.total_bytes)} free in {path}"


def _directory_check(name: str, path: Path, disk: Disk, finding: Finding | None) -> CheckResult:
    title, text = f"disk: {name}", _room(path, disk)
    if not disk.is_writable:
        return _read_only(name, title, path)
    hint = f"`du -sh {path}/*` shows what takes the space"
    if finding is not None:
        return judged(title, text, finding, hint, disk.free_bytes)
    if disk.free_bytes < LEAST_BYTES:
        return CheckResult(title, Status.WARNING, text, hint, disk.free_bytes)
    return CheckResult(title, Status.OK, text, amount=disk.free_bytes)


def _read_only(name: str, title: str, path: Path) -> CheckResult:
    text, hint = f"{path} is not writable", f"make {path} writable"
    if name == HERE:
        return judged(title, text, Finding("not-writable", text, hint, severity=Severity.FAILS_LATER))
    if name == TEMPORARY:
        hint = "set TMPDIR"
    return CheckResult(title, Status.WARNING, text, hint)


def _too_small(writes: Sequence[DiskUse], there: Mapping[Path, Disk]) -> Iterator[tuple[Path, Finding]]:
    """Find what is too small for all that is written to it: a path, and the finding."""
    placed = [(there[use.path], use) for use in writes if use.path in there]
    placed.sort(key=lambda pair: pair[0].device)
    for _, group in groupby(placed, key=lambda pair: pair[0].device):
        pairs = list(group)
        disk, uses = pairs[0][0], [use for _, use in pairs]
        if sum(use.num_bytes for use in uses) > disk.free_bytes:
            yield _full(disk, uses)
        elif sum(max(use.num_bytes, use.over_run) for use in uses) > disk.free_bytes:
            yield _fills_up(disk, max(uses, key=lambda use: use.over_run))


def _full(disk: Disk, uses: Sequence[DiskUse]) -> tuple[Path, Finding]:
    """List the largest first; the record of a run is mentioned only if nothing else is written."""
    largest = sorted(uses, key=lambda use: -use.num_bytes)
    named = [use for use in largest if use.num_bytes > largest[0].num_bytes // 100]
    takes = ", ".join(f"{mib(use.num_bytes)} for {use.what}" for use in named)
    left = "nothing can be stored"
    if disk.total_bytes:
        left = f"{mib(disk.free_bytes)} are free"
    finding = Finding(
        DISK,
        f"{left} on the file system of `{named[0].path}`, but the job needs {takes}",
        f"use {' or '.join(use.elsewhere for use in named)} on a larger disk",
        severity=Severity.FAILS_LATER,
    )
    return named[0].path, finding


def _fills_up(disk: Disk, use: DiskUse) -> tuple[Path, Finding]:
    """Warn of a disk that has room for the first of several checkpoints."""
    finding = Finding(
        DISK,
        f"{mib(disk.free_bytes)} are free on the file system of `{use.path}`, but the checkpoints of the "
        f"whole run need {mib(use.over_run)}, at {mib(use.num_bytes)} each",
        "`-- --save_total_limit 1` keeps the newest alone; a larger `--save_steps` saves less often",
        severity=Severity.ADVICE,
    )
    return use.path, finding
