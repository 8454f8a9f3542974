"""How a job ended, as a word and an exit status."""

import signal

from zlaunch.diagnosis.evidence import Evidence, RankEvidence
from zlaunch.diagnosis.root_cause import ENDS_PROGRAMS, RankRole, role_of
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.errors import ExitStatus
from zlaunch.frozen import dataclass
from zlaunch.rundir import phases

STALLED_STATUS = 124
"""The same as that of `timeout`."""

PREEMPTED_STATUS = int(ExitStatus.SAVED)
"""Saved, start again."""

IN_VAIN = frozenset({"loss-not-a-number", "autotuning-left-on", "gradients-discarded", "steps-skipped"})
"""Verdicts on jobs that finished without a usable result."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended."""

    how: str
    """`finished`, `stumbled`, `failed`, `stopped`, `preempted` or `stalled`."""
    exit_status: int
    returncode: int
    """That of the deciding process, as in `subprocess`: -n for signal n."""
    verdict: Verdict | None = None
    """Why it ended; None if all is well. A job may finish without a usable result."""


def judge_outcome(evidence: Evidence, verdict: Verdict) -> Outcome:
    """Decide how a job ended.

    A rank that was stopped did not fail: another rank or the user ended the job. A rank without a return
    code was lost together with its rank program.
    """
    if evidence.is_preempted:
        status = PREEMPTED_STATUS
        if evidence.save is not None and evidence.save.is_no_progress:  # a scheduler would restart it forever
            status = STALLED_STATUS
        return Outcome("preempted", status, 0, verdict)
    if evidence.stall is not None and evidence.stall.ended_job:
        return Outcome("stalled", STALLED_STATUS, -signal.SIGTERM, verdict)
    if evidence.is_diverged:
        return _outcome("failed", 1, verdict)
    if evidence.stopped_by is None:
        return _ended(evidence, verdict)
    returncode = -evidence.stopped_by
    if evidence.save is not None and evidence.save.is_limit:
        return Outcome("stopped", STALLED_STATUS, returncode, verdict)
    return _outcome("stopped", returncode, verdict)


def _ended(evidence: Evidence, verdict: Verdict) -> Outcome:
    ranks = evidence.ranks
    if ranks and all(rank.finished for rank in ranks):
        if evidence.launcher_returncode != 0:
            return Outcome("stumbled", 0, 0, verdict)
        if verdict.code in IN_VAIN:
            return Outcome("finished", 0, 0, verdict)
        return Outcome("finished", 0, 0)
    if ranks and all(rank.ran_to_its_end for rank in ranks):
        return Outcome("stumbled", 0, _returncode(evidence, verdict), verdict)
    return _outcome("failed", _returncode(evidence, verdict), verdict)


def _returncode(evidence: Evidence, verdict: Verdict) -> int:
    """Take the status of the rank that failed first, else the launcher's. A lost rank was killed."""
    lost = [rank.rank for rank in evidence.ranks if rank.returncode is None and evidence.takes_records]
    if verdict.rank in lost and verdict.code != "host-lost":  # of a lost host, nothing is known
        return -signal.SIGKILL
    failed = [rank for rank in evidence.ranks if _failed_by_itself(rank, evidence)]
    blamed = next((rank for rank in failed if rank.rank == verdict.rank), None)
    first = blamed or min(failed, key=lambda rank: rank.ended or 0.0, default=None)
    if first is not None:
        return _own_returncode(first)
    if evidence.launcher_returncode != 0:
        return evidence.launcher_returncode
    return -signal.SIGKILL if lost else 1


def _failed_by_itself(rank: RankEvidence, evidence: Evidence) -> bool:
    is_stopped = rank.stopped_by is not None or role_of(rank, evidence) is RankRole.STOPPED
    return bool(rank.returncode) and not is_stopped


def _own_returncode(rank: RankEvidence) -> int:
    """After an exception Python exits with 1, even if it is killed while it exits; not after Ctrl-C."""
    returncode = rank.returncode or 0
    raised = rank.error is not None and rank.error.type != "KeyboardInterrupt"
    if raised and rank.phase == phases.EXITING and -returncode in ENDS_PROGRAMS:
        return 1
    return returncode


def _outcome(how: str, returncode: int, verdict: Verdict) -> Outcome:
    return Outcome(how, exit_status(returncode), returncode, verdict)


def exit_status(returncode: int) -> int:
    """Return 128+n for a process that was killed by signal n, as shells do."""
    return 128 - returncode if returncode < 0 else returncode
