"""How a job ended: evidence, and where it began → one word, one exit status."""

import signal
from dataclasses import dataclass

from zlaunch.diagnosis.evidence import Evidence, RankEvidence
from zlaunch.diagnosis.root_cause import ENDS_PROGRAMS
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.rundir import phases

STALLED_STATUS = 124
"""What `timeout` says too: nothing failed, and nothing came of it in time."""

IN_VAIN = frozenset({"loss-not-a-number", "autotuning-left-on"})
"""Verdicts on jobs that ended well, and came to nothing."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended."""

    how: str
    """`finished`, `stumbled`, `failed`, `stopped` or `stalled`."""
    exit_status: int
    returncode: int
    """Of whatever decided that, as `subprocess` gives it: minus n for signal n."""
    verdict: Verdict | None = None
    """Why, unless all is well; a job may finish, and still have computed nothing sensible."""


def judge_outcome(evidence: Evidence, verdict: Verdict) -> Outcome:
    """Decide how a job ended.

    A rank that was told to stop did not fail: another one, or the person, ended the job. A rank
    without a return code was lost together with what ran around it.
    """
    if evidence.stall is not None and evidence.stall.ended_job:
        return Outcome("stalled", STALLED_STATUS, -signal.SIGTERM, verdict)
    if evidence.stopped_by is not None:
        return _outcome("stopped", -evidence.stopped_by, verdict)
    ranks = evidence.ranks
    if ranks and all(rank.finished for rank in ranks):
        clean = evidence.launcher_returncode == 0
        told = not clean or verdict.code in IN_VAIN
        return Outcome("finished" if clean else "stumbled", 0, 0, verdict if told else None)
    if ranks and all(rank.ran_to_its_end for rank in ranks):
        return Outcome("stumbled", 0, _returncode(evidence, verdict), verdict)
    return _outcome("failed", _returncode(evidence, verdict), verdict)


def _returncode(evidence: Evidence, verdict: Verdict) -> int:
    """Take the status of the rank it began with, else the first failure, else the launcher's.

    A rank that was lost was killed, whatever its launcher makes of that.
    """
    if any(rank.rank == verdict.rank and rank.returncode is None for rank in evidence.ranks):
        return -signal.SIGKILL
    failed = [rank for rank in evidence.ranks if rank.returncode and rank.stopped_by is None]
    blamed = next((rank for rank in failed if rank.rank == verdict.rank), None)
    first = blamed or min(failed, key=lambda rank: rank.ended or 0.0, default=None)
    if first is not None:
        return _of_itself(first)
    if evidence.launcher_returncode != 0:
        return evidence.launcher_returncode
    return -signal.SIGKILL if any(rank.returncode is None for rank in evidence.ranks) else 1


def _of_itself(rank: RankEvidence) -> int:
    """Python leaves with 1 after an exception, even if it is killed while it leaves; not after Ctrl-C."""
    returncode = rank.returncode or 0
    raised = rank.error is not None and rank.error.type != "KeyboardInterrupt"
    was_cut_short = raised and rank.phase == phases.EXITING and -returncode in ENDS_PROGRAMS
    return 1 if was_cut_short else returncode


def _outcome(how: str, returncode: int, verdict: Verdict) -> Outcome:
    return Outcome(how, exit_status(returncode), returncode, verdict)


def exit_status(returncode: int) -> int:
    """Killed by signal n is 128+n, as in every shell; it never looks like success."""
    return 128 - returncode if returncode < 0 else returncode
