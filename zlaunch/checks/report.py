"""The rows of all hosts as one table, in which only hosts that deviate are named."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zlaunch.checks.across_hosts import compare
from zlaunch.checks.host import JobNeeds, check_host
from zlaunch.checks.row import Row, Status, worst
from zlaunch.hosts.agent.examine import Examined
from zlaunch.units import plural

MOST_NAMES = 4


@dataclass(frozen=True)
class DoctorReport:
    """What was found on each host."""

    hosts: Sequence[Examined]
    rows: Mapping[str, tuple[Row, ...]]
    """Host → its rows."""

    @property
    def status(self) -> Status:
        """The worst status of all."""
        return worst(row for rows in self.rows.values() for row in rows)

    @property
    def is_one(self) -> bool:
        """Whether there is only one host."""
        return len(self.rows) == 1


def judge(hosts: Sequence[Examined], subject: JobNeeds, more: Iterable[tuple[str, Row]] = ()) -> DoctorReport:
    """Judge the facts of all hosts; `more` are rows of other measurements."""
    rows: dict[str, list[Row]] = {one.name: [*_own(one, subject)] for one in hosts}
    if len(hosts) > 1:
        for name, row in compare(hosts):
            _add(rows[name], row)
    for name, row in more:
        _add(rows[name], row)
    return DoctorReport(hosts, {name: tuple(found) for name, found in rows.items()})


def _own(one: Examined, subject: JobNeeds) -> Iterator[Row]:
    if one.failure is not None:
        name, message, hint = one.failure
        yield Row(name, Status.ERROR, message, hint)
    elif one.facts is not None:
        yield from check_host(one.facts, subject)


def _add(rows: list[Row], row: Row) -> None:
    """Add a row; of two about the same thing, the worse one stays."""
    for index, old in enumerate(rows):
        if old.name == row.name:
            rows[index] = max(old, row, key=lambda each: each.status.rank)
            return
    rows.append(row)


def merged(report: DoctorReport) -> list[Row]:
    """Write the rows of several hosts as one table; each distinct result is a row.

    Hosts without an answer come first.
    """
    names = dict.fromkeys(row.name for one in report.hosts for row in report.rows[one.name] if one.failure)
    names |= dict.fromkeys(row.name for rows in report.rows.values() for row in rows)
    return [row for name in names for row in _of_one_name(name, report)]


def _of_one_name(name: str, report: DoctorReport) -> Iterator[Row]:
    by_host = {host: row for host, rows in report.rows.items() for row in rows if row.name == name}
    groups: dict[tuple[Status, str], dict[str, Row]] = {}
    for host, row in by_host.items():
        key = (row.status, "" if row.amount is not None else row.value)
        groups.setdefault(key, {})[host] = row
    answered = sum(one.facts is not None for one in report.hosts)
    for rows in sorted(groups.values(), key=lambda rows: -len(rows)):
        row = next(iter(rows.values()))
        is_all = (
            len(groups) == 1
            and len(rows) >= max(answered - (row.status is Status.OK), 1)
            and not _is_failure(rows, report)
        )
        is_most = len(rows) * 2 > answered and row.status is Status.OK
        where = "" if is_all else f"{plural(len(rows), 'host') if is_most else named([*rows])}: "
        value = row.value if row.amount is None else _range(rows)
        yield Row(
            name, row.status, f"{where}{value}", next((one.hint for one in rows.values() if one.hint), None)
        )


def _is_failure(rows: Mapping[str, Row], report: DoctorReport) -> bool:
    """Whether it must be said which hosts these are: none of them has answered."""
    return any(one.failure for one in report.hosts if one.name in rows)


def _range(rows: Mapping[str, Row]) -> str:
    ordered = sorted(rows.items(), key=lambda item: item[1].amount or 0.0)
    (least, first), (_, last) = ordered[0], ordered[-1]
    if first.value == last.value or len(rows) == 1:
        return first.value
    return f"{first.value} (least, {least}) to {last.value}"


def named(hosts: Sequence[str]) -> str:
    """Name hosts; of many, the first ones."""
    if len(hosts) <= MOST_NAMES:
        return ", ".join(hosts)
    return f"{', '.join(hosts[:MOST_NAMES])} and {len(hosts) - MOST_NAMES} more"
