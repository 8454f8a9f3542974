"""The rows of all hosts as one table, in which only hosts that deviate are named."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from zlaunch.checks.across_hosts import HostResult, compare
from zlaunch.checks.host import check_host
from zlaunch.checks.measurements import judge_measurements
from zlaunch.checks.requirements import Requirements
from zlaunch.checks.result import CheckResult, Status, worst
from zlaunch.frozen import dataclass
from zlaunch.hosts.agent.examination import Examined
from zlaunch.units import listed, plural

MOST_NAMES = 4


@dataclass(frozen=True)
class DoctorReport:
    """What was found on each host."""

    hosts: Sequence[Examined]
    rows: Mapping[str, tuple[CheckResult, ...]]
    """Host → its rows."""

    @property
    def status(self) -> Status:
        """The worst status of all."""
        return worst(chain(*self.rows.values()))

    @property
    def is_one(self) -> bool:
        """Whether there is only one host."""
        return len(self.rows) == 1


def judge(
    hosts: Sequence[Examined],
    needs: Requirements,
    program: Path | None = None,
    more: Iterable[HostResult] = (),
) -> DoctorReport:
    """Judge the facts of all hosts; `more` are results on other measurements."""
    rows: dict[str, list[CheckResult]] = {host.name: [*_own(host, needs)] for host in hosts}
    if len(hosts) > 1:
        facts = {host.name: host.facts for host in hosts if host.facts is not None}
        devices = {host.name: host.host.devices for host in hosts}
        more = [*compare(facts, devices, program), *judge_measurements(hosts), *more]
    for name, result in more:
        _add_row(rows[name], result)
    return DoctorReport(hosts, {name: tuple(results) for name, results in rows.items()})


def _own(host: Examined, needs: Requirements) -> Iterator[CheckResult]:
    if host.failure is not None:
        yield CheckResult(host.failure.subject, Status.ERROR, host.failure.message, host.failure.hint)
    elif host.facts is not None:
        yield from check_host(host.facts, needs)


def _add_row(rows: list[CheckResult], row: CheckResult) -> None:
    """Add a row; of two about the same thing, the worse one stays."""
    for index, old in enumerate(rows):
        if old.name == row.name:
            rows[index] = max(old, row, key=lambda each: each.status.rank)
            return
    rows.append(row)


def merged(report: DoctorReport) -> list[CheckResult]:
    """Write the rows of several hosts as one table; each distinct result is a row.

    Hosts without an answer come first.
    """
    failed = [host.name for host in report.hosts if host.failure]
    rows = chain(*(report.rows[host] for host in (*failed, *report.rows)))
    names = dict.fromkeys(row.name for row in rows)
    return [*chain(*(_of_one_name(name, report) for name in names))]


def _of_one_name(name: str, report: DoctorReport) -> Iterator[CheckResult]:
    by_host: dict[str, CheckResult] = {}
    for host, results in report.rows.items():
        for row in results:
            if row.name == name:
                by_host[host] = row
    groups: dict[tuple[Status, str], dict[str, CheckResult]] = {}
    for host, row in by_host.items():
        value = row.value
        if row.amount is not None:  # which differs from host to host
            value = ""
        groups.setdefault((row.status, value), {})[host] = row
    for rows in sorted(groups.values(), key=lambda rows: -len(rows)):
        first = next(iter(rows.values()))
        value = first.value
        if first.amount is not None:
            value = _range(rows)
        hint = next((result.hint for result in rows.values() if result.hint), None)
        where = _hosts_text(rows, first.status, report, is_only=len(groups) == 1)
        yield CheckResult(name, first.status, where + value, hint)


def _hosts_text(
    rows: Mapping[str, CheckResult], status: Status, report: DoctorReport, *, is_only: bool
) -> str:
    """Say which hosts these are, unless it is all that have answered."""
    answered = sum(host.has_answered for host in report.hosts)
    enough = max(answered - (status is Status.OK), 1)
    if is_only and len(rows) >= enough and not _is_failure(rows, report):
        return ""
    if status is Status.OK and len(rows) * 2 > answered:
        return f"{plural(len(rows), 'host')}: "
    return f"{listed([*rows], MOST_NAMES)}: "


def _is_failure(rows: Mapping[str, CheckResult], report: DoctorReport) -> bool:
    """Whether it must be said which hosts these are: none of them has answered."""
    return any(host.failure for host in report.hosts if host.name in rows)


def _range(rows: Mapping[str, CheckResult]) -> str:
    ordered = sorted(rows.items(), key=lambda item: item[1].amount or 0.0)
    (least, first), (_, last) = ordered[0], ordered[-1]
    if first.value == last.value or len(rows) == 1:
        return first.value
    return f"{first.value} (least, {least}) to {last.value}"
