"""Finish a job: decide how it ended and why, record it, report it."""

import os
import time
from typing import Final

from zlaunch.diagnosis.diagnose import diagnose
from zlaunch.diagnosis.evidence import Evidence
from zlaunch.diagnosis.outcome import Outcome, judge_outcome
from zlaunch.diagnosis.stall import StallEvidence
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.errors import ZlaunchError
from zlaunch.frozen import dataclass
from zlaunch.launch import rundir_writer
from zlaunch.launch.op_build import NotBuilt
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.reporter import Reporter
from zlaunch.resume.reshard import NotConverted
from zlaunch.resume.saved_by_run import saved_by_run
from zlaunch.rundir.read import read_record
from zlaunch.rundir.record import EndingRecord
from zlaunch.runs import accuracy
from zlaunch.runs.memory import compare_with_forecast
from zlaunch.runs.profile import profile_note
from zlaunch.runs.run import Run
from zlaunch.runs.what_ran import differences, unused

WORTH_SAYING_SECONDS: Final = 60.0
"""Time of all steps from which on their speed is worth a word."""

_CODES: dict[type[ZlaunchError], str] = {NotBuilt: "op-build-failed", NotConverted: "conversion-failed"}
"""Why a launcher was not started."""


@dataclass(frozen=True)
class FinishedRun:
    """How a job ended, and the evidence for it."""

    outcome: Outcome
    evidence: Evidence


def finish_run(
    plan: LaunchPlan, run: Run, evidence: Evidence, started: float, reporter: Reporter
) -> FinishedRun:
    """Decide how a job ended, record the outcome, report it."""
    outcome = judge_outcome(evidence, diagnose(evidence))
    _record_outcome(plan, outcome, started, reporter, evidence.stall)
    run = run.holding(ending=read_record(run.paths.ending, EndingRecord))
    if run.forecast and outcome.exit_status == 0:
        accuracy.record_accuracy(accuracy.accuracy_file(), run, compare_with_forecast(run))
    reporter.ended(plan, outcome, time.time() - started, run)
    reporter.differed(differences(run))
    reporter.ignored(unused(run))
    if (time_of_step := run.step_time) is not None and time_of_step.total_seconds > WORTH_SAYING_SECONDS:
        reporter.slowed(time_of_step.losses[:1])
    if (why := profile_note(run)) is not None:
        reporter.note(why)
    reporter.saved(saved_by_run(run))
    reporter.tracked(run.program.get("trackers", {}))
    return FinishedRun(outcome, evidence)


def record_failed_start(plan: LaunchPlan, error: ZlaunchError, started: float, reporter: Reporter) -> None:
    """Record a job whose launcher did not start; the error itself is shown like any other."""
    verdict = Verdict(
        _CODES.get(type(error), "launcher-failed"), error.message, advice=(error.hint,) if error.hint else ()
    )
    _record_outcome(plan, Outcome("failed", error.status, error.status, verdict), started, reporter)


def _record_outcome(
    plan: LaunchPlan, outcome: Outcome, started: float, reporter: Reporter, stall: StallEvidence | None = None
) -> None:
    """Write the outcome; the exit status stays the same if that fails."""
    try:
        rundir_writer.write_outcome(plan.layout, outcome, started, stall)
    except OSError as error:
        reporter.note(f"{os.path.relpath(plan.layout.ending)} could not be written: {error.strerror}")
