"""Derive what the record of a run's end does not say from the other records."""

from dataclasses import replace

from zlaunch.diagnosis.collect import LauncherEnd, collect_evidence, tail
from zlaunch.diagnosis.diagnose import diagnose
from zlaunch.diagnosis.evidence import Evidence
from zlaunch.diagnosis.log_text import exception_in
from zlaunch.diagnosis.root_cause import RankRole, role_of, root_cause
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.runs.run import Run, State


def derived_verdict(run: Run) -> Verdict | None:
    """Derive the verdict of a run that is over, if its records suffice.

    Those of a lost run do if a rank failed by itself, or a build before all ranks: otherwise zlaunch was
    killed, and its ranks after it.
    """
    returncode = run.ending.get("returncode", 0)
    stopped_by = -returncode if run.state is State.STOPPED and returncode < 0 else None
    evidence = collect_evidence(run, LauncherEnd(returncode, stopped_by))
    rank = root_cause(evidence)
    has_failed = rank is not None and role_of(rank, evidence) is RankRole.FAILED
    if not has_failed and run.state not in (State.FAILED, State.STOPPED, State.STUMBLED):
        return _failed_build(run, evidence)
    return diagnose(evidence)


def _failed_build(run: Run, evidence: Evidence) -> Verdict | None:
    """Diagnose the build of a native op that raised an exception; None if there is none, or ranks ran."""
    if not all(rank.never_started for rank in evidence.ranks):
        return None
    for log in run.paths.build_logs():
        text = tail(log)
        if exception_in(text) is None:
            continue
        verdict = diagnose(replace(evidence, launcher_log=text))
        if verdict.code != "unknown":
            return verdict
    return None
