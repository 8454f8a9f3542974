"""The evidence as it looks from the rank with which it began, and what a signature makes of it."""

import signal
from dataclasses import dataclass
from functools import cached_property

from zlaunch.diagnosis.evidence import ErrorEvidence, Evidence, JobEvidence, MachineEvidence, RankEvidence
from zlaunch.diagnosis.log_text import MOST_OF_A_LOG, exception_in


def error_of(rank: RankEvidence) -> ErrorEvidence | None:
    """Find the exception that ended a rank: the one it recorded, else the last that it printed."""
    if rank.error is not None:
        return rank.error
    may_have_raised = rank.returncode is not None and (
        rank.returncode > 0 or rank.returncode == -signal.SIGABRT
    )
    return exception_in(rank.log) if may_have_raised else None


def words_of(rank: RankEvidence) -> str:
    """Say what a rank told about its own end: its exception, else the end of its log.

    A signal that cannot be caught leaves no last words; what stands in the log then is older.
    """
    if error := error_of(rank):
        return f"{error.type}: {error.message}" if error.message else error.type
    if rank.returncode is not None and rank.returncode < 0 and rank.returncode != -signal.SIGABRT:
        return ""
    return rank.log[-MOST_OF_A_LOG:]


def signal_name(number: int) -> str:
    """Name a signal; some numbers have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True)
class Case:
    """What a signature looks at."""

    evidence: Evidence
    rank: RankEvidence | None
    """Where it began; None if no rank failed."""

    @property
    def job(self) -> JobEvidence:
        """Say what was run."""
        return self.evidence.job

    @cached_property
    def error(self) -> ErrorEvidence | None:
        """Find the exception that ended the rank."""
        return None if self.rank is None else error_of(self.rank)

    @cached_property
    def words(self) -> str:
        """Say what the rank told about its end; without one, what the launcher did."""
        return self.evidence.launcher_log[-MOST_OF_A_LOG:] if self.rank is None else words_of(self.rank)

    @cached_property
    def story(self) -> str:
        """The same with the whole traceback: also what led to the exception."""
        return f"{self.error.traceback}\n{self.words}" if self.error is not None else self.words

    @property
    def signal(self) -> int | None:
        """The signal that the rank died of, of itself."""
        if self.rank is None or self.rank.stopped_by is not None or self.rank.returncode is None:
            return None
        return -self.rank.returncode if self.rank.returncode < 0 else None

    @property
    def phase(self) -> str | None:
        """Say what the rank was doing."""
        if self.rank is None:
            return None
        of_error = self.error.phase if self.error is not None else None
        return of_error or self.rank.phase or None

    @property
    def who(self) -> str:
        """Name the rank."""
        if self.rank is None:
            return "the launcher"
        hosts = {rank.host for rank in self.evidence.ranks}
        return f"rank {self.rank.rank}" + (f" on {self.rank.host}" if len(hosts) > 1 else "")

    @cached_property
    def machine(self) -> MachineEvidence | None:
        """Find the host of the rank."""
        machines = self.evidence.machines
        if self.rank is None:
            return machines[0] if len(machines) == 1 else None
        return next((one for one in machines if one.host == self.rank.host), None)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a signature finds, if it is its death."""

    cause: str
    facts: tuple[str | None, ...] = ()
    """The most telling first; None is left out."""
    advice: tuple[str, ...] = ()
    rank: RankEvidence | None = None
    """Where it began, if that is not the rank of the case."""
    is_local: bool = True
    """Whether it began with a rank at all."""
