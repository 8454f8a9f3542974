"""A row of the doctor's table: what was looked at, how it is, and what to type."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    """How bad a row is."""

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
class Row:
    """One result of a check."""

    name: str
    status: Status
    value: str
    hint: str | None = None
    """What to type."""
    amount: float | None = None
    """The value as a number, if it is one that differs from host to host."""


def worst(rows: Iterable[Row]) -> Status:
    """The status of the worst row."""
    return max((row.status for row in rows), key=lambda status: status.rank, default=Status.OK)
