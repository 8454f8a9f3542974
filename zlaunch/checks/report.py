"""The rows of all hosts as one table, in which only hosts that deviate are named."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zlaunch.checks.across_hosts import HostResult, compare
from zlaunch.checks.host import check_host
from zlaunch.checks.measurements import judge_measurements
from zlaunch.checks.requirements import Requirements
from zlaunch.checks.result import CheckResult, Status, worst
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
        return worst(row for rows in self.rows.values() for row in rows)

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
    rows: dict[str, list[CheckResult]] = {one.name: [*_own(one, needs)] for one in hosts}
    if len(hosts) > 1:
        facts = {one.name: one.facts for one in hosts if one.facts is not None}
        devices = {one.name: one.host.devices for one in hosts}
        more = [*compare(facts, devices, program), *judge_measurements(hosts), *more]
    for name, result in more:
        _add(rows[name], result)
    return DoctorReport(hosts, {name: tuple(results) for name, results in rows.items()})


def _own(one: Examined, needs: Requirements) -> Iterator[CheckResult]:
    if one.failure is not None:
        yield CheckResult(one.failure.subject, Status.ERROR, one.failure.message, one.failure.hint)
    elif one.facts is not None:
        yield from check_host(one.facts, needs)


def _add(rows: list[CheckResult], row: CheckResult) -> None:
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
    names = dict.fromkeys(row.name for one in report.hosts for row in report.rows[one.name] if one.failure)
    names |= dict.fromkeys(row.name for rows in report.rows.values() for row in rows)
    return [row for name in names for row in _of_one_name(name, report)]


def _of_one_name(name: str, report: DoctorReport) -> Iterator[CheckResult]:
    by_host = {host: row for host, rows in report.rows.items() for row in rows if row.name == name}
    groups: dict[tuple[Status, str], dict[str, CheckResult]] = {}
    for host, row in by_host.items():
        value = row.value if row.amount is None else ""
        groups.setdefault((row.status, value), {})[host] = row
    for rows in sorted(groups.values(), key=lambda rows: -len(rows)):
        first = next(iter(rows.values()))
        value = first.value if first.amount is None else _range(rows)
        hint = next((one.hint for one in rows.values() if one.hint), None)
        where = _hosts_text(rows, first.status, report, is_only=len(groups) == 1)
        yield CheckResult(name, first.status, where + value, hint)


def _hosts_text(
    rows: Mapping[str, CheckResult], status: Status, report: DoctorReport, *, is_only: bool
) -> str:
    """Say which hosts these are, unless it is all that have answered."""
    answered = sum(one.has_answered for one in report.hosts)
    enough = max(answered - (status is Status.OK), 1)
    if is_only and len(rows) >= enough and not _is_failure(rows, report):
        return ""
    if status is Status.OK and len(rows) * 2 > answered:
        return f"{plural(len(rows), 'host')}: "
    return f"{listed([*rows], MOST_NAMES)}: "


def _is_failure(rows: Mapping[str, CheckResult], report: DoctorReport) -> bool:
    """Whether it must be said which hosts these are: none of them has answered."""
    return any(one.failure for one in report.hosts if one.name in rows)


def _range(rows: Mapping[str, CheckResult]) -> str:
    ordered = sorted(rows.items(), key=lambda item: item[1].amount or 0.0)
    (least, first), (_, last) = ordered[0], ordered[-1]
    if first.value == last.value or len(rows) == 1:
        return first.value
    return f"{first.value} (least, {least}) to {last.value}"
