"""Preflight checks for remote hosts: resources and shared paths."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zlaunch.checks.resources import check_resources
from zlaunch.errors import Finding, Severity
from zlaunch.hosts.machine.resources import FreeResources
from zlaunch.job.args import NO_ARGS
from zlaunch.launch.requirements import ResourceRequirements

NOT_SHARED, DISK = "not-shared", "disk-too-small"
_TYPED_HERE = (NOT_SHARED, DISK)
"""These are fixed in the command line, not on the host."""


@dataclass(frozen=True)
class SharedPaths:
    """Files that hosts must have or share."""

    run: Path | None
    """The nearest existing directory above the run directory: the same one on all hosts."""
    own: tuple[Path, ...]
    """What must exist on every host, shared or not."""
    ops: frozenset[str]
    """Build folders of the native ops of this job."""
    files: Mapping[Path, tuple[int, int]]
    """Paths of this machine, the run's and those of locks on other hosts → identity of the file."""


def check_remote_hosts(
    needs: Mapping[str, ResourceRequirements],
    free: Mapping[str, FreeResources],
    shared: SharedPaths,
    here: Collection[Finding] = (),
) -> list[Finding]:
    """Find what is short on each host; equal findings of several hosts become one.

    A disk that was found full here, to the same byte, is the one that all share.
    """
    known = {finding for finding in here if finding.code == DISK}
    named: dict[Finding, list[str]] = {}
    for host, need in needs.items():
        found = (*_judge(need, free[host]), *_locks(shared, free[host]), *_files(shared, free[host]))
        for finding in (one for one in found if one not in known):
            named.setdefault(finding, []).append(host)
    return [_on(hosts, finding) for finding, hosts in named.items()]


def _judge(need: ResourceRequirements, resources: FreeResources) -> tuple[Finding, ...]:
    """Check a host like this machine, except for monitors, which run on one host only."""
    return check_resources(replace(need, monitors=(), args=NO_ARGS), resources)


def _on(hosts: Sequence[str], finding: Finding) -> Finding:
    more = f" and {len(hosts) - 3} more" if len(hosts) > 3 else ""
    where = ", ".join(hosts[:3]) + more
    hint = finding.hint if finding.code in _TYPED_HERE else f"on {where}: {finding.hint}"
    return replace(finding, where=where, hint=hint)


def _files(shared: SharedPaths, resources: FreeResources) -> Iterator[Finding]:
    """Compare the files of a host with those here.

    A directory that changes in between looks like another one, so a difference is only advice.
    """
    hint = "use a directory that all hosts share: `--run-dir DIR`"
    if shared.run is not None and shared.run not in resources.files:
        yield Finding(NOT_SHARED, f"there is no `{shared.run}`", hint, severity=Severity.FAILS_LATER)
    elif shared.run is not None and resources.files[shared.run] != shared.files.get(shared.run):
        message = (
            f"`{shared.run}` seems to be a different directory than here, but all ranks record the run in it"
        )
        yield Finding(NOT_SHARED, message, hint, severity=Severity.ADVICE)
    for path in shared.own:
        if path in resources.files:
            continue
        message = f"there is no `{path}`"
        how = "copy it there"
        if resources.looked_for is not None and path not in resources.looked_for:  # a node's own zlaunch did
            message = f"its zlaunch did not look for `{path}`: it was started in another directory"
            how = "start zlaunch in the same directory everywhere"
        yield Finding(NOT_SHARED, message, how, severity=Severity.FAILS_LATER)


def _locks(shared: SharedPaths, resources: FreeResources) -> Iterator[Finding]:
    """Find stale build locks; those that are shared with this machine are removed before the start."""
    for lock in sorted(resources.left_locks):
        if lock.parent.name in shared.ops and resources.files.get(lock) != shared.files.get(lock):
            message = f"a build of {lock.parent.name} was killed; the ranks would wait for its lock forever"
            yield Finding("build-lock", message, f"`rm {lock}`", severity=Severity.FAILS_LATER)
