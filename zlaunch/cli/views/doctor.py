"""Shows what `zlaunch doctor` found: one table for all hosts, or JSON."""

from collections import Counter
from collections.abc import Iterator, Sequence

from zlaunch import console
from zlaunch.checks.report import MOST_NAMES, DoctorReport, merged
from zlaunch.checks.result import CheckResult, Status
from zlaunch.cli.views.dump import to_json
from zlaunch.console import visible
from zlaunch.units import brief, listed, plural

MOST_WAITING = 3


class DoctorView:
    """Shows which hosts have not answered yet."""

    def __init__(self, total: int) -> None:
        """Prepare to wait for a number of hosts."""
        self._total = total
        self._line = console.ProgressLine(in_pipes=False)

    def waiting(self, names: Sequence[str]) -> None:
        """Show for which hosts the doctor still waits."""
        if not names:
            return
        done = f"{self._total - len(names)} of {plural(self._total, 'host')} examined"
        self._line.show(done, f"· waiting for {listed(names, MOST_WAITING)}")

    def reducing(self, names: Sequence[str]) -> None:
        """Show that an all-reduce is measured."""
        self._line.show(
            "measuring an all-reduce", f"· waiting for {listed(names, MOST_NAMES)}" if names else ""
        )

    def done(self) -> None:
        """Remove the line."""
        self._line.clear()


def table_lines(report: DoctorReport) -> Iterator[str]:
    """Write the table, what to type under each row, and a count of what is wrong."""
    rows = next(iter(report.rows.values())) if report.is_one else merged(report)
    width = max(len(row.name) for row in rows)
    for row in rows:
        yield from _row_lines(row, width)
    yield ""
    yield from console.paragraph(summary(report, rows))


def _row_lines(row: CheckResult, width: int) -> Iterator[str]:
    start = f"{row.status.value:<8} {row.name:<{width}}  "
    indent = " " * len(start)
    first, *rest = console.paragraph(visible(row.value), indent) or [indent]
    yield (start + first[len(indent) :]).rstrip()
    yield from rest
    if row.hint:
        hint, *more = console.paragraph(f"hint: {visible(row.hint)}", " " * 9)
        yield hint
        yield from (f"      {line}" for line in more)


def summary(report: DoctorReport, rows: Sequence[CheckResult]) -> str:
    """Count errors and warnings, and say how long the hosts took."""
    counts = Counter(row.status for row in rows)
    errors, warnings = counts[Status.ERROR], counts[Status.WARNING]
    troubles = [plural(n, noun) for n, noun in ((errors, "error"), (warnings, "warning")) if n]
    result = ", ".join(troubles) or "nothing is wrong"
    if report.is_one:
        return result
    answered = [host for host in report.hosts if host.has_answered]
    text = f"{result}; {len(answered)} of {plural(len(report.hosts), 'host')} answered"
    if not answered:
        return text
    slowest = max(answered, key=lambda host: host.seconds)
    return f"{text}; the slowest, {slowest.name}, after {brief(slowest.seconds)}"


def as_json(report: DoctorReport) -> str:
    """Write everything that was found as one JSON object."""
    hosts = {
        host.name: {
            "seconds": round(host.seconds, 3),
            "rows": [_check_members(row) for row in report.rows[host.name]],
            "facts": host.facts,
        }
        for host in report.hosts
    }
    return to_json({"status": report.status.value, "hosts": hosts})


def _check_members(row: CheckResult) -> dict[str, object]:
    return {"name": row.name, "status": row.status.value, "value": row.value, "hint": row.hint}
