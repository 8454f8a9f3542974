"""Findings, errors and exit statuses.

A `Finding` is a mistake in something the user wrote; all findings are collected and raised once, as
`Refused`. Any other `ZlaunchError` means that there is no answer. Each kind of error has one exit status,
listed in `ExitStatus`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field
from enum import Enum, IntEnum
from typing import Any

from zlaunch.frozen import dataclass


class ExitStatus(IntEnum):
    """Exit statuses of zlaunch itself; otherwise it is the job's own, 128+n for signal n."""

    OK = 0
    USAGE = 2
    REFUSED = 65
    NO_INPUT = 66
    UNAVAILABLE = 69
    SAVED = 75
    """The training was asked to stop, and has saved: start it again. `EX_TEMPFAIL` of sysexits."""


class Severity(Enum):
    """What happens if a finding is ignored."""

    ERROR = "error"
    """DeepSpeed refuses it when it reads the config."""

    FAILS_LATER = "fails later"
    """The job fails after the model is loaded, or at its first step."""

    WARNING = "warning"
    """The job runs, but may train something else, or fail."""

    IGNORED = "ignored"
    """DeepSpeed accepts it and ignores it, or does something else."""

    ADVICE = "advice"
    """It works, but there is a better way."""


FATAL = frozenset({Severity.ERROR, Severity.FAILS_LATER})
"""Severities with which the job fails."""


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a file; lines and columns count from 1."""

    file: str
    line: int
    column: int
    text: str = field(default="", compare=False)
    """The whole line, to show it."""
    length: int = field(default=1, compare=False)
    """Number of characters to mark."""

    @property
    def end_column(self) -> int:
        """The column after the last one to mark; it is in the same line."""
        return self.column + self.length

    def __str__(self) -> str:
        """Write the place as compilers do, so that editors can jump to it."""
        return f"{self.file}:{self.line}:{self.column}"


class FixKind(Enum):
    """What a fix does to the key of a finding."""

    RENAME = "rename"
    """Give the key another name."""

    WRITE = "write"
    """Write another value."""

    DELETE = "delete"
    """Delete the key."""

    MOVE = "move"
    """Move the key and its value into the section of that dotted name, or to the top level if it is empty."""

    UNWRAP = "unwrap"
    """Write the value of the key as the whole file."""

    REPLACE = "replace"
    """Replace the key and its value; `to` is the new pair."""

    PLAIN = "plain"
    """Write the whole text as strict JSON without changing its meaning; comments stay."""

    UNCOMMENT = "uncomment"
    """Delete all comments."""

    @property
    def is_textual(self) -> bool:
        """Whether the value of the text stays the same."""
        return self in (FixKind.PLAIN, FixKind.UNCOMMENT)

    @property
    def is_guess(self) -> bool:
        """Whether it makes DeepSpeed read what it does not read as the text is."""
        return self in (FixKind.RENAME, FixKind.MOVE, FixKind.UNWRAP)


@dataclass(frozen=True, slots=True)
class Fix:
    """The one safe way to fix a finding."""

    kind: FixKind
    to: Any = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake: what it is, what happens, where it is, and what to type instead."""

    code: str
    message: str
    hint: str | None = None
    where: str = ""
    """The key, as `zero_optimization.stage`; or a flag, as `--learning_rate`."""
    severity: Severity = Severity.ERROR
    place: Place | None = None
    path: tuple[str | int, ...] | None = None
    """The key as a path, for names that contain dots."""
    fix: Fix | None = None
    """None if the user must choose how to fix it."""
    beside: tuple[str | int, ...] | None = None
    """The intended key, if it is also present; the hint then says to merge them."""
    is_mistake: bool = False
    """Whether nobody means it, even if DeepSpeed ignores it: a misspelled or misplaced key."""

    @property
    def is_refused(self) -> bool:
        """Whether zlaunch refuses a ds_config with it, in every command."""
        return self.severity in FATAL or self.is_mistake

    @property
    def label(self) -> Severity:
        """The severity as it is shown: "ignored" would read as if zlaunch did not mind what it refuses."""
        if self.severity is Severity.IGNORED and self.is_mistake:
            return Severity.ERROR
        return self.severity


def in_order(finding: Finding) -> tuple[int, int]:
    """Sort key: the position in the file."""
    if finding.place is None:
        return (0, 0)
    return (finding.place.line, finding.place.column)


class ZlaunchError(Exception):
    """An error that ends the program with `status`."""

    status = ExitStatus.UNAVAILABLE

    def __init__(self, message: str, hint: str | None = None) -> None:
        """Keep the message and the hint that says what to type."""
        super().__init__(message)
        self.message = message
        self.hint = hint

    @property
    def reasons(self) -> tuple[str, ...]:
        """What is wrong, for a place that cannot show findings."""
        return (self.message,)


class WrongUsage(ZlaunchError):
    """The command line is wrong."""

    status = ExitStatus.USAGE


class InputMissing(ZlaunchError):
    """A file that was named does not exist or cannot be read."""

    status = ExitStatus.NO_INPUT


class Unavailable(ZlaunchError):
    """This machine lacks what the job needs."""

    status = ExitStatus.UNAVAILABLE


class Refused(ZlaunchError):
    """The job cannot work; `findings` has every reason."""

    status = ExitStatus.REFUSED

    def __init__(self, findings: Sequence[Finding], hint: str | None = None) -> None:
        """Keep all findings; the message only counts them."""
        self.findings = tuple(findings)
        count = len(self.findings)
        super().__init__(f"{count} problem{'s' if count != 1 else ''} found", hint)

    @property
    def reasons(self) -> tuple[str, ...]:
        """The message of each finding, after its key or flag."""
        return tuple(": ".join(filter(None, (found.where, found.message))) for found in self.findings)


def refuse_fatal(findings: Iterable[Finding]) -> None:
    """Raise Refused with the findings that make a job fail, if there are any."""
    if fatal := [finding for finding in findings if finding.severity in FATAL]:
        raise Refused(fatal)
