"""What can go wrong, as values: findings that a user mends, errors that keep us from knowing.

A `Finding` is a mistake in something the user wrote; all of them are collected and raised once,
as `Refused`. A `ZlaunchError` of another kind says that an answer could not be had at all. Each
kind has one exit status, and `ExitStatus` is the only table of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any


class ExitStatus(IntEnum):
    """What the exit status of zlaunch says; otherwise it is the job's own, 128+n for signal n."""

    OK = 0
    USAGE = 2
    REFUSED = 65
    NO_INPUT = 66
    UNAVAILABLE = 69


class Severity(Enum):
    """What happens if a finding is left alone."""

    ERROR = "error"
    """DeepSpeed refuses it when it reads the config."""

    LATE = "late"
    """The job fails after the model is loaded, or at its first step."""

    SILENT = "silent"
    """DeepSpeed accepts it and does something else."""

    ADVICE = "advice"
    """It works, and there is a better way."""


FATAL = frozenset({Severity.ERROR, Severity.LATE})
"""With one of these the job fails."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a file something stands; lines and columns count from 1."""

    file: str
    line: int
    column: int
    text: str = field(default="", compare=False)
    """The whole line, to show it."""
    length: int = field(default=1, compare=False)
    """How many characters of it are meant."""

    def __str__(self) -> str:
        """Write the place as compilers do, so that editors can jump to it."""
        return f"{self.file}:{self.line}:{self.column}"


class FixKind(Enum):
    """What a mending does to the key that a finding is about."""

    RENAME = "rename"
    """Give the key another name."""

    WRITE = "write"
    """Write another value."""

    DELETE = "delete"
    """Leave the key out."""

    MOVE = "move"
    """Put the key and its value into the section of that name; at the top if it is empty."""

    REPLACE = "replace"
    """Put another key with another value in its place; `to` is both."""

    PLAIN = "plain"
    """Write the whole text as strict JSON, without changing what it means."""


@dataclass(frozen=True, slots=True)
class Fix:
    """The one safe way to mend a finding."""

    act: FixKind
    to: Any = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake: what it is and does, where it stands, and what to type instead."""

    code: str
    message: str
    hint: str | None = None
    where: str = ""
    """The key, as `zero_optimization.stage`; or a flag, as `--learning_rate`."""
    severity: Severity = Severity.ERROR
    place: Place | None = None
    path: tuple[str | int, ...] | None = None
    """The key again, where dots in a name would leave a doubt."""
    mending: Fix | None = None
    """Absent where the mending is a choice, which is the user's."""
    beside: tuple[str | int, ...] | None = None
    """The key that was meant and is there already; whoever wrote both in one text is told to merge them."""


def in_order(finding: Finding) -> tuple[int, int]:
    """Sort findings as a person reads a file."""
    return (finding.place.line, finding.place.column) if finding.place else (0, 0)


class ZlaunchError(Exception):
    """Something the user must know and act on; `status` is what the program exits with."""

    status = ExitStatus.UNAVAILABLE

    def __init__(self, message: str, hint: str | None = None) -> None:
        """Keep the message and, when there is one, what to type next."""
        super().__init__(message)
        self.message = message
        self.hint = hint


class WrongUsage(ZlaunchError):
    """The command line itself makes no sense."""

    status = ExitStatus.USAGE


class InputMissing(ZlaunchError):
    """A file that was named does not exist or cannot be read."""

    status = ExitStatus.NO_INPUT


class Unavailable(ZlaunchError):
    """This machine lacks what the job needs."""

    status = ExitStatus.UNAVAILABLE


class Refused(ZlaunchError):
    """The job cannot work as it was asked for; `findings` says every reason at once."""

    status = ExitStatus.REFUSED

    def __init__(self, findings: Sequence[Finding]) -> None:
        """Keep all findings; the message only counts them."""
        self.findings = tuple(findings)
        count = len(self.findings)
        super().__init__(f"{count} problem{'s' if count != 1 else ''} found")


def refuse_fatal(findings: Iterable[Finding]) -> None:
    """Raise Refused with the findings that make a job fail, if there are any."""
    if fatal := [one for one in findings if one.severity in FATAL]:
        raise Refused(fatal)
