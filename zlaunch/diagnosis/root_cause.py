"""With which rank it began: those that others dragged down come after those that failed of themselves."""

import re
import signal
from collections.abc import Mapping
from enum import IntEnum

from zlaunch.diagnosis.case import error_of, words_of
from zlaunch.diagnosis.evidence import Evidence, RankEvidence

ENDS_PROGRAMS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL})
"""Signals that a launcher, a scheduler or a person sends to end a program."""

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


class Role(IntEnum):
    """What part a rank had in the end of a run; the first is the most to blame."""

    FAILED = 0
    """It failed of itself."""
    LOST = 1
    """It is gone together with what ran around it."""
    DRAGGED = 2
    """Something from outside ended it: it waited in vain, or got a signal that asks to end."""
    CUT_OFF = 3
    """It lost its connection, as all do whose peer ended for whatever reason."""
    STOPPED = 4
    """It was told to stop."""
    NONE = 5
    """It finished, or never began."""


def role_of(rank: RankEvidence, evidence: Evidence) -> Role:
    """Say what part a rank had."""
    if rank.returncode == 0:
        return Role.NONE
    error = error_of(rank)
    if error is None and rank.returncode is None:
        return _without_an_end(rank)
    if rank.stopped_by is not None and not _raised_before(rank):
        return Role.STOPPED
    if error is None and -(rank.returncode or 0) in ENDS_PROGRAMS:
        return _ended_from_outside(rank, evidence)
    return _by_its_words(words_of(rank), error.type if error is not None else None)


def _by_its_words(words: str, exception: str | None) -> Role:
    if exception == "KeyboardInterrupt":
        return Role.STOPPED
    if WAITED_IN_VAIN.search(words):
        return Role.DRAGGED
    return Role.CUT_OFF if LOST_PEER.search(words) else Role.FAILED


def _without_an_end(rank: RankEvidence) -> Role:
    if rank.stopped_by is not None:
        return Role.STOPPED
    return Role.LOST if rank.log or rank.phase or rank.heartbeat or rank.step else Role.NONE


def _raised_before(rank: RankEvidence) -> bool:
    """Whether a rank that was told to stop had raised an exception of its own by then."""
    error = rank.error
    return error is not None and error.type not in {"KeyboardInterrupt", "SystemExit", "SignalException"}


def _ended_from_outside(rank: RankEvidence, evidence: Evidence) -> Role:
    """Judge a signal that ends jobs: it raises no question when a person stopped all of them."""
    if evidence.stopped_by is not None:
        return Role.STOPPED
    return Role.FAILED if rank.returncode == -signal.SIGKILL else Role.DRAGGED


def roles(evidence: Evidence) -> Mapping[int, Role]:
    """Say what part each rank had."""
    return {rank.rank: role_of(rank, evidence) for rank in evidence.ranks}


def root_cause(evidence: Evidence) -> RankEvidence | None:
    """Find the rank with which it began; None if no rank failed."""
    guilty = [(role_of(rank, evidence), rank) for rank in evidence.ranks]
    failed = [(part, rank) for part, rank in guilty if part <= Role.CUT_OFF]
    return min(failed, key=lambda each: (each[0], _when(each[1]), each[1].rank), default=(None, None))[1]


def _when(rank: RankEvidence) -> float:
    """Say when it failed: an exception is raised long before its process has ended."""
    time = rank.error.time if rank.error is not None else None
    return time if time is not None else rank.ended if rank.ended is not None else float("inf")
