"""Derive what the record of a run's end does not say from the other records."""

from zlaunch.diagnosis.collect import LauncherEnd, collect_evidence
from zlaunch.diagnosis.diagnose import diagnose
from zlaunch.diagnosis.root_cause import RankRole, role_of, root_cause
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.runs.run import Run, State


def derived_verdict(run: Run) -> Verdict | None:
    """Derive the verdict of a run that is over, if its records suffice.

    Those of a lost run do if a rank failed by itself: otherwise zlaunch was killed, and its ranks after it.
    """
    returncode = run.ending.get("returncode", 0)
    stopped_by = -returncode if run.state is State.STOPPED and returncode < 0 else None
    evidence = collect_evidence(run, LauncherEnd(returncode, stopped_by))
    rank = root_cause(evidence)
    has_failed = rank is not None and role_of(rank, evidence) is RankRole.FAILED
    if not has_failed and run.state not in (State.FAILED, State.STOPPED, State.STUMBLED):
        return None
    return diagnose(evidence)
