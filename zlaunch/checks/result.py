"""The answer to one question about a host: a row of the doctor's table, and what `train` says of it."""

from collections.abc import Iterable
from enum import Enum

from zlaunch.errors import Finding
from zlaunch.frozen import dataclass


class Status(Enum):
    """How bad a result is."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; jobs are not affected."""
    WARNING = "warning"
    """Some jobs fail or are slow."""
    ERROR = "error"
    """No job, or not the one at hand, can train like this."""

    @property
    def rank(self) -> int:
        """Worse ones have higher numbers."""
        return list(Status).index(self)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One result of a check."""

    name: str
    status: Status
    value: str
    hint: str | None = None
    """What to type."""
    amount: float | None = None
    """The value as a number, if it is one that differs from host to host."""
    finding: Finding | None = None
    """What `train` says, if its plan is affected."""


def judged(
    name: str, value: str, finding: Finding, hint: str | None = None, amount: float | None = None
) -> CheckResult:
    """Judge by a finding: an error is what `train` refuses, anything else a warning."""
    status = Status.ERROR if finding.is_refused else Status.WARNING
    return CheckResult(name, status, value, hint or finding.hint, amount, finding)


def worst(results: Iterable[CheckResult]) -> Status:
    """The status of the worst result."""
    return max((row.status for row in results), key=lambda status: status.rank, default=Status.OK)
