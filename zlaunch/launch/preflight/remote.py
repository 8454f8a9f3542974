"""Whether the other hosts of a job have what it takes, and see what they must see."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zlaunch.errors import Finding, Severity
from zlaunch.hosts.machine import FreeResources
from zlaunch.launch.preflight.checks import check_resources
from zlaunch.launch.preflight.requirements import ResourceRequirements

NOT_SHARED, DISK = "not-shared", "disk-too-small"
_TYPED_HERE = (NOT_SHARED, DISK)
"""What mends these belongs to the command that starts the job."""


@dataclass(frozen=True)
class SharedPaths:
    """What hosts have to do with files."""

    run: Path | None
    """What is there already of the run directory's path: the same directory on all hosts."""
    own: tuple[Path, ...]
    """What must be there too, shared or not."""
    ops: frozenset[str]
    """Build folders of the native ops that the ranks will load."""
    files: Mapping[Path, tuple[int, int]]
    """The run's, and the locks found elsewhere, as far as they are on this machine → which file that is."""


def check_remote_hosts(
    demands: Mapping[str, ResourceRequirements],
    rooms: Mapping[str, FreeResources],
    common: SharedPaths,
    here: Collection[Finding] = (),
) -> list[Finding]:
    """Find what is short on each host; hosts of which the same is to be said are named together.

    A full disk that was found here, to the same byte, is the one that all share.
    """
    known = {finding for finding in here if finding.code == DISK}
    named: dict[Finding, list[str]] = {}
    for host, demand in demands.items():
        found = (*_judge(demand, rooms[host]), *_locks(common, rooms[host]), *_files(common, rooms[host]))
        for finding in (one for one in found if one not in known):
            named.setdefault(finding, []).append(host)
    return [_on(hosts, finding) for finding, hosts in named.items()]


def _judge(demand: ResourceRequirements, room: FreeResources) -> tuple[Finding, ...]:
    """Judge a host as this machine is; what the job reports to is judged once, here."""
    return check_resources(replace(demand, monitors=(), script_args=()), room)


def _on(hosts: Sequence[str], finding: Finding) -> Finding:
    more = f" and {len(hosts) - 3} more" if len(hosts) > 3 else ""
    where = ", ".join(hosts[:3]) + more
    hint = finding.hint if finding.code in _TYPED_HERE else f"on {where}: {finding.hint}"
    return replace(finding, where=where, hint=hint)


def _files(common: SharedPaths, room: FreeResources) -> Iterator[Finding]:
    """Compare what a host sees with what is here.

    A directory in which somebody writes meanwhile looks like another one: that is no more than advice.
    """
    shared = "put the run where all hosts see it, with `--run-dir DIR`"
    if common.run is not None and common.run not in room.files:
        yield Finding(NOT_SHARED, f"there is no `{common.run}`", shared, severity=Severity.LATE)
    elif common.run is not None and room.files[common.run] != common.files.get(common.run):
        message = f"`{common.run}` seems to be another directory than here, and the run is recorded in it"
        yield Finding(NOT_SHARED, message, shared, severity=Severity.ADVICE)
    for path in common.own:
        if path not in room.files:
            yield Finding(NOT_SHARED, f"there is no `{path}`", "put it there", severity=Severity.LATE)


def _locks(common: SharedPaths, room: FreeResources) -> Iterator[Finding]:
    """Find what keeps ranks waiting there; what is here too is removed before they start."""
    for lock in sorted(room.left_locks):
        if lock.parent.name in common.ops and room.files.get(lock) != common.files.get(lock):
            message = f"a build of {lock.parent.name} was killed, and the ranks would wait for it for ever"
            yield Finding("build-lock", message, f"`rm {lock}`", severity=Severity.LATE)
