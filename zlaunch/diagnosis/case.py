"""A case for the signatures: the evidence, and the rank that failed first."""

import signal
from collections.abc import Sequence
from functools import cached_property

from zlaunch.diagnosis.evidence import ErrorEvidence, Evidence, JobEvidence, RankEvidence
from zlaunch.diagnosis.log_text import MOST_OF_A_LOG, exception_in
from zlaunch.frozen import dataclass
from zlaunch.rundir.record import MachineSample
from zlaunch.worker.sampling import NOT_COUNTED, OomKills


def error_of(rank: RankEvidence) -> ErrorEvidence | None:
    """Return the exception that ended a rank: the recorded one, else the last one in its log."""
    if rank.error is not None:
        return rank.error
    if rank.returncode is None or (rank.returncode <= 0 and rank.returncode != -signal.SIGABRT):
        return None
    return exception_in(rank.log)


def words_of(rank: RankEvidence) -> str:
    """Return the last output of a rank: its exception, else the end of its log.

    Empty after a signal that cannot be caught: its log says nothing about the end.
    """
    if error := error_of(rank):
        return str(error)
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
        if self.rank is None:
            return None
        return error_of(self.rank)

    @cached_property
    def words(self) -> str:
        """The last output of the rank; without a rank, that of the launcher."""
        if self.rank is None:
            return self.evidence.launcher_log[-MOST_OF_A_LOG:]
        return words_of(self.rank)

    @cached_property
    def story(self) -> str:
        """The same with the whole traceback, which also shows what led to the exception."""
        if self.error is None:
            return self.words
        return f"{self.error.traceback}\n{self.words}"

    @property
    def log(self) -> str:
        """The end of what the rank printed; empty without a rank."""
        return "" if self.rank is None else self.rank.log

    @property
    def signal(self) -> int | None:
        """The signal that killed the rank, unless it was told to stop."""
        if self.rank is None or self.rank.stopped_by is not None or (self.rank.returncode or 0) >= 0:
            return None
        return -(self.rank.returncode or 0)

    @property
    def phase(self) -> str | None:
        """The phase in which the rank failed."""
        if self.rank is None:
            return None
        return self.rank.last_phase or None

    @property
    def who(self) -> str:
        """The rank in words."""
        if self.rank is None:
            return "the launcher"
        if len({rank.host for rank in self.evidence.ranks}) > 1:
            return f"rank {self.rank.rank} on {self.rank.host}"
        return f"rank {self.rank.rank}"

    @property
    def oom_kills(self) -> OomKills:
        """The kills on the rank's host; without a rank, on the only host."""
        kills = self.evidence.oom_kills
        if self.rank is not None:
            return kills.get(self.rank.host, NOT_COUNTED)
        if len(kills) == 1:
            return next(iter(kills.values()))
        return NOT_COUNTED

    @property
    def machine(self) -> MachineSample:
        """The last sample of the rank's host; without a rank, of the only host."""
        machines = self.evidence.machines
        if self.rank is not None:
            return machines.get(self.rank.host, MachineSample())
        if len(machines) == 1:
            return next(iter(machines.values()))
        return MachineSample()


@dataclass(frozen=True, slots=True)
class Reading:
    """The finding of a signature that matches."""

    cause: str
    facts: Sequence[str | None] = ()
    """The most important first; None is left out."""
    advice: Sequence[str | None] = ()
    rank: RankEvidence | None = None
    """The rank that failed first, if it is not the rank of the case."""
    is_local: bool = True
    """Whether a single rank failed first."""
