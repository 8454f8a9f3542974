"""Preflight: compare what a plan needs with what is free, here and on the other hosts."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from shutil import which

from zlaunch.checks.across_hosts import HostResult, compare
from zlaunch.checks.disks import DISK
from zlaunch.checks.host import check_host
from zlaunch.checks.result import CheckResult
from zlaunch.checks.shared_paths import NOT_SHARED, SharedPaths, check_paths
from zlaunch.checks.tracking import UNKNOWN_MONITOR
from zlaunch.errors import Finding, Severity, Unavailable
from zlaunch.files import identities, is_safe_word
from zlaunch.hosts.machine.probe import free_resources
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.requirements import requirements_of
from zlaunch.units import listed

MOST_HOSTS = 3
_TYPED_HERE = (NOT_SHARED, DISK, UNKNOWN_MONITOR)
"""These are fixed in the command line, not on the host."""


def check_all_hosts(plan: LaunchPlan) -> list[Finding]:
    """Find everything that is short, on this machine first.

    Raises Unavailable if DeepSpeed's runner could not start ranks on other hosts.
    """
    if plan.topology.spans_hosts and not plan.on_each_host:
        _check_runner(plan)
    here = findings_of(_check_this_machine(plan))
    return [*here, *findings_of_hosts((*_compare(plan), *_check_other_hosts(plan)), here)]


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


def _compare(plan: LaunchPlan) -> Iterator[HostResult]:
    files = plan.facts.here.files
    return compare(
        plan.facts.known_hosts,
        devices={host.name: host.devices for host in plan.topology.hosts},
        program=plan.facts.script.path.absolute(),
        here={} if files is None else files.hashes,
    )


def _check_runner(plan: LaunchPlan) -> None:
    """Raise Unavailable if DeepSpeed's runner could not start the ranks."""
    assert plan.backend.starter is not None
    starter, package = plan.backend.starter
    if which(starter, path=plan.facts.environ.get("PATH")) is None:
        raise Unavailable(
            f"DeepSpeed's launcher starts the ranks of a hostfile with {starter}, which is not installed",
            f"use `--launcher torchrun`, or install {starter} (Debian: `apt-get install {package}`)",
        )
    if odd := [word for word in plan.start_words if not is_safe_word(word)]:
        raise Unavailable(
            f"DeepSpeed's launcher does not quote `{odd[0]}`, so other hosts could not start it",
            "use `--launcher torchrun`, or an environment in a directory without spaces and quotes",
        )


def _check_this_machine(plan: LaunchPlan) -> list[CheckResult]:
    facts = plan.facts.here
    name = next(iter(plan.facts.names_here), facts.machine.hostname)
    needs = requirements_of(plan, name)
    if plan.topology.spans_hosts:  # ranks are started by a login, whose limit may differ from ours
        needs = replace(needs, locked_bytes=0)
    free = free_resources([use.path for use in needs.writes])
    return check_host(replace(facts, free=free), needs)


def _check_other_hosts(plan: LaunchPlan) -> Iterator[HostResult]:
    # With a launcher on each host, hosts that do not share the run directory send their part of it.
    question = plan.facts.question
    run = None if plan.on_each_host else next(iter(question.identified), None)
    own = (Path(plan.script_words[0]).absolute(), *(swap.parent for swap in plan.swap_dirs))
    shared = SharedPaths(
        run=run,
        own=tuple(path for path in dict.fromkeys(own) if path in question.paths),
        here={} if run is None else identities([run]),
    )
    for name, facts in plan.facts.others.items():
        for result in (*check_host(facts, requirements_of(plan, name)), *check_paths(facts, shared)):
            yield name, result
