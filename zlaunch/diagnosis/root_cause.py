"""Find the rank that failed first; ranks that failed by themselves come before ranks ended by others."""

import math
import re
import signal
from collections.abc import Mapping, Sequence
from enum import IntEnum

from zlaunch.diagnosis.case import error_of, words_of
from zlaunch.diagnosis.evidence import Evidence, RankEvidence

ENDS_PROGRAMS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL})
"""Signals that launchers, schedulers and people send to end a program."""

LOST_PEER = re.compile(
    r"[Cc]onnection closed by peer|[Cc]onnection reset by peer|[Bb]roken pipe"
    r"|ncclRemoteError|remote process exited or there was a network error"
    r"|[Ss]ocket[^\n]{0,200}(?:[Cc]onnection (?:reset|closed)|timed out)"
    r"|recvValue failed|sendBytes failed|recvBytes failed|TCPStore is no longer"
    r"|Failed to recv, got 0 bytes|heartbeat monitor|NCCL communicator was aborted"
)
WAITED_IN_VAIN = re.compile(
    r"Watchdog caught collective operation timeout|Timed out waiting \d+ms for (?:recv|send) operation"
    r"|failed to pass monitoredBarrier|successfully reached monitoredBarrier|in monitoredBarrier after"
    r"|No ranks successfully processed in monitoredBarrier|Timed out after \d+ seconds waiting for clients"
    r"|The client socket has (?:timed out|failed to connect)|wait timeout after \d+ms"
)


class RankRole(IntEnum):
    """The role of a rank in the end of a run, the most responsible first."""

    FAILED = 0
    """It failed by itself."""
    LOST = 1
    """It was lost together with its rank program."""
    DRAGGED = 2
    """Something else ended it: a timeout of a collective, or a signal."""
    CUT_OFF = 3
    """It lost the connection to a peer that had ended."""
    STOPPED = 4
    """It was told to stop, or killed with its launcher."""
    NONE = 5
    """It finished, or never started."""


def role_of(rank: RankEvidence, evidence: Evidence) -> RankRole:
    """Determine the role of a rank."""
    if rank.returncode == 0:
        return RankRole.NONE
    error = error_of(rank)
    if error is None and rank.returncode is None:
        return _without_an_end(rank, evidence)
    if rank.stopped_by is not None and not _raised_before(rank):
        return RankRole.STOPPED
    was_killed = evidence.launcher_returncode < 0
    if _follows_stop(rank, evidence) or (was_killed and lost_a_stopped_rank(rank, evidence.ranks)):
        return RankRole.STOPPED
    is_interrupted = error is not None and error.type == "KeyboardInterrupt"
    if is_interrupted or (error is None and -(rank.returncode or 0) in ENDS_PROGRAMS):
        return _ended_from_outside(rank, evidence)
    return _by_its_words(words_of(rank))


def _by_its_words(words: str) -> RankRole:
    if WAITED_IN_VAIN.search(words):
        return RankRole.DRAGGED
    if LOST_PEER.search(words):
        return RankRole.CUT_OFF
    return RankRole.FAILED


def _without_an_end(rank: RankEvidence, evidence: Evidence) -> RankRole:
    # The kernel kills the rank programs of a launcher that is killed, some before they can record an end.
    if rank.stopped_by is not None or evidence.launcher_returncode < 0:
        return RankRole.STOPPED
    if evidence.takes_records and not rank.never_started:
        return RankRole.LOST
    return RankRole.NONE


def _raised_before(rank: RankEvidence) -> bool:
    error = rank.error
    if error is None or error.type in {"KeyboardInterrupt", "SystemExit", "SignalException"}:
        return False
    return error.time is None or rank.stopped_at is None or error.time < rank.stopped_at


def _follows_stop(rank: RankEvidence, evidence: Evidence) -> bool:
    """Whether a rank failed after the job was stopped."""
    return _seconds_after_stop(rank, evidence) >= 0


def lost_a_stopped_rank(rank: RankEvidence, ranks: Sequence[RankEvidence]) -> bool:
    """Whether a rank lost, or waited for, one that had been told to stop before.

    Each rank program sees within `TICK_SECONDS` that its launcher is gone, so one may stop its script before
    the next one looks.
    """
    if _by_its_words(words_of(rank)) is RankRole.FAILED:
        return False
    return any(follows(rank, other) for other in ranks if other.stopped_by is not None)


def precedes_stop(rank: RankEvidence, evidence: Evidence) -> bool:
    """Whether a rank failed before the job was stopped."""
    return _seconds_after_stop(rank, evidence) < 0


def _seconds_after_stop(rank: RankEvidence, evidence: Evidence) -> float:
    """NaN if that is unknown, as on another host, whose clock may differ."""
    if evidence.stopped_by is None or evidence.stopped_at is None or rank.host != evidence.stopped_on:
        return math.nan
    return failed_at(rank) - evidence.stopped_at


def first_stopped(ranks: Sequence[RankEvidence]) -> RankEvidence | None:
    """Find the rank that got a signal first, before zlaunch had ordered any to stop."""
    signalled = [rank for rank in ranks if rank.signalled and rank.stopped_by is not None]
    return min(signalled, key=lambda rank: rank.stopped_at or math.inf, default=None)


def follows(rank: RankEvidence, first: RankEvidence) -> bool:
    """Whether a rank failed because `first` was stopped: later, or on another host by losing its peer."""
    if rank.returncode is None or first.stopped_at is None:
        return False
    if rank.host == first.host:
        return failed_at(rank) >= first.stopped_at
    return _by_its_words(words_of(rank)) is not RankRole.FAILED


def _ended_from_outside(rank: RankEvidence, evidence: Evidence) -> RankRole:
    """Judge a rank that a signal or KeyboardInterrupt ended: if zlaunch was stopped, that was the reason."""
    if evidence.stopped_by is not None and not precedes_stop(rank, evidence):
        return RankRole.STOPPED
    if rank.returncode == -signal.SIGKILL:
        return RankRole.FAILED
    return RankRole.DRAGGED


def roles(evidence: Evidence) -> Mapping[int, RankRole]:
    """Determine the role of each rank."""
    return {rank.rank: role_of(rank, evidence) for rank in evidence.ranks}


def root_cause(evidence: Evidence) -> RankEvidence | None:
    """Find the rank that failed first; None if no rank failed."""
    failed = [rank for rank in evidence.ranks if role_of(rank, evidence) <= RankRole.CUT_OFF]
    return min(failed, key=lambda rank: (role_of(rank, evidence), failed_at(rank), rank.rank), default=None)


def failed_at(rank: RankEvidence) -> float:
    """Return when a rank raised its exception, or else ended; infinity if that is unknown."""
    if rank.error is not None and rank.error.time is not None:
        return rank.error.time  # an exception is raised long before its process ends
    if rank.ended is not None:
        return rank.ended
    return math.inf
