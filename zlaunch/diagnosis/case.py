"""A case for the signatures: the evidence, and the rank that failed first."""

import signal
from dataclasses import dataclass
from functools import cached_property

from zlaunch.diagnosis.evidence import ErrorEvidence, Evidence, JobEvidence, RankEvidence
from zlaunch.diagnosis.log_text import MOST_OF_A_LOG, exception_in
from zlaunch.rundir.record import MachineSample


def error_of(rank: RankEvidence) -> ErrorEvidence | None:
    """Return the exception that ended a rank: the recorded one, else the last one in its log."""
    if rank.error is not None:
        return rank.error
    may_have_raised = rank.returncode is not None and (
        rank.returncode > 0 or rank.returncode == -signal.SIGABRT
    )
    return exception_in(rank.log) if may_have_raised else None


def words_of(rank: RankEvidence) -> str:
    """Return the last output of a rank: its exception, else the end of its log.

    Empty after a signal that cannot be caught: its log says nothing about the end.
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
    """The input of a signature."""

    evidence: Evidence
    rank: RankEvidence | None
    """The rank that failed first; None if no rank failed."""

    @property
    def job(self) -> JobEvidence:
        """The job of the evidence."""
        return self.evidence.job

    @cached_property
    def error(self) -> ErrorEvidence | None:
        """The exception that ended the rank."""
        return None if self.rank is None else error_of(self.rank)

    @cached_property
    def words(self) -> str:
        """The last output of the rank; without a rank, that of the launcher."""
        return self.evidence.launcher_log[-MOST_OF_A_LOG:] if self.rank is None else words_of(self.rank)

    @cached_property
    def story(self) -> str:
        """The same with the whole traceback, which also shows what led to the exception."""
        return f"{self.error.traceback}\n{self.words}" if self.error is not None else self.words

    @property
    def log(self) -> str:
        """The end of what the rank printed; empty without a rank."""
        return "" if self.rank is None else self.rank.log

    @property
    def signal(self) -> int | None:
        """The signal that killed the rank, unless it was told to stop."""
        if self.rank is None or self.rank.stopped_by is not None or self.rank.returncode is None:
            return None
        return -self.rank.returncode if self.rank.returncode < 0 else None

    @property
    def phase(self) -> str | None:
        """The phase in which the rank failed."""
        if self.rank is None:
            return None
        of_error = self.error.phase if self.error is not None else None
        return of_error or self.rank.phase or None

    @property
    def who(self) -> str:
        """The rank in words."""
        if self.rank is None:
            return "the launcher"
        hosts = {rank.host for rank in self.evidence.ranks}
        return f"rank {self.rank.rank}" + (f" on {self.rank.host}" if len(hosts) > 1 else "")

    @property
    def machine(self) -> MachineSample:
        """The last sample of the rank's host; without a rank, of the only host."""
        machines = self.evidence.machines
        hosts = [*machines] if self.rank is None else [self.rank.host]
        return machines.get(hosts[0], MachineSample()) if len(hosts) == 1 else MachineSample()


@dataclass(frozen=True, slots=True)
class Reading:
    """The finding of a signature that matches."""

    cause: str
    facts: tuple[str | None, ...] = ()
    """The most important first; None is left out."""
    advice: tuple[str | None, ...] = ()
    rank: RankEvidence | None = None
    """The rank that failed first, if it is not the rank of the case."""
    is_local: bool = True
    """Whether a single rank failed first."""
