"""Checks of the paths that the hosts of a job must have or share."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from zlaunch.checks.result import CheckResult, judged
from zlaunch.errors import Finding, Severity
from zlaunch.hosts.machine.facts import Files, MachineFacts

NOT_SHARED = "not-shared"


class SharedPaths(NamedTuple):
    """Paths that hosts must have or share."""

    run: Path | None
    """The nearest existing directory above the run directory: the same one on all hosts."""
    own: tuple[Path, ...]
    """What must exist on every host, shared or not."""
    here: Mapping[Path, tuple[int, int]]
    """Path → its identity on this machine."""


def check_paths(facts: MachineFacts, shared: SharedPaths) -> Iterator[CheckResult]:
    """Compare the paths of a host with those here.

    A directory that changes in between looks like another one, so a difference is only advice.
    """
    if facts.files is None:
        return
    findings = [*_own_paths(facts.files, shared)]
    if shared.run is not None:
        findings = [*_run_directory_findings(shared.run, facts.files, shared), *findings]
    for finding in findings:
        yield judged("paths", finding.message, finding)


def _run_directory_findings(run: Path, files: Files, shared: SharedPaths) -> Iterator[Finding]:
    hint = "use a directory that all hosts share: `--run-dir DIR`"
    if run not in files.identities:
        yield Finding(NOT_SHARED, f"there is no `{run}`", hint, severity=Severity.FAILS_LATER)
    elif files.identities[run] != shared.here.get(run):
        message = f"`{run}` seems to be a different directory than here, but all ranks record the run in it"
        yield Finding(NOT_SHARED, message, hint, severity=Severity.ADVICE)


def _own_paths(files: Files, shared: SharedPaths) -> Iterator[Finding]:
    for path in shared.own:
        if path in files.identities:
            continue
        if path in files.looked_for:
            yield missing_path(path)
        else:  # a node's own zlaunch asks itself
            message = f"its zlaunch did not look for `{path}`: it was started in another directory"
            how = "start zlaunch in the same directory everywhere"
            yield Finding(NOT_SHARED, message, how, severity=Severity.FAILS_LATER)


def missing_path(path: Path) -> Finding:
    """Find that a host lacks a path that its ranks need."""
    return Finding(NOT_SHARED, f"there is no `{path}`", "copy it there", severity=Severity.FAILS_LATER)
