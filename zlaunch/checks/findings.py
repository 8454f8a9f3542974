"""What `train` says of results: those with a finding, each once, with the hosts that it is about."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from zlaunch.checks.disks import DISK
from zlaunch.checks.result import CheckResult
from zlaunch.checks.shared_paths import NOT_SHARED
from zlaunch.checks.tracking import UNKNOWN_MONITOR
from zlaunch.errors import Finding, Severity
from zlaunch.units import listed

MOST_HOSTS = 3
_TYPED_HERE = (NOT_SHARED, DISK, UNKNOWN_MONITOR)
"""These are fixed in the command line, not on the host."""


def findings_of(results: Iterable[CheckResult]) -> list[Finding]:
    """Return the findings, advice last."""
    findings = [result.finding for result in results if result.finding is not None]
    return sorted(findings, key=lambda finding: finding.severity is Severity.ADVICE)


def findings_of_hosts(
    results: Iterable[tuple[str, CheckResult]], known: Collection[Finding] = ()
) -> list[Finding]:
    """Return the findings about hosts; equal ones of several hosts become one.

    A disk that was found full here, to the same byte, is the one that all share.
    """
    full = {finding for finding in known if finding.code == DISK}
    named: dict[Finding, dict[str, None]] = {}
    for host, result in results:
        if result.finding is not None and result.finding not in full:
            named.setdefault(result.finding, {})[host] = None
    return [_on([*hosts], finding) for finding, hosts in named.items()]


def _on(hosts: list[str], finding: Finding) -> Finding:
    where = listed(hosts, MOST_HOSTS)
    if finding.code in _TYPED_HERE:
        return replace(finding, where=where)
    return replace(finding, where=where, hint=f"on {where}: {finding.hint}")
