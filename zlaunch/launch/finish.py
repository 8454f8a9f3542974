"""Concluding a job: judge how it ended and why, write that down, tell it."""

import os
import time
from dataclasses import dataclass

from zlaunch import console
from zlaunch.diagnosis import diagnose
from zlaunch.diagnosis.evidence import Evidence, StallEvidence
from zlaunch.diagnosis.outcome import Outcome, judge_outcome
from zlaunch.diagnosis.render import verdict_lines
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.errors import ZlaunchError
from zlaunch.job.spec import MonitorOptions
from zlaunch.launch import rundir_writer
from zlaunch.launch.op_build import NotBuilt
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.progress import loss_line
from zlaunch.rundir.read import read_record
from zlaunch.rundir.record import HeartbeatRecord
from zlaunch.runs import accuracy
from zlaunch.runs.memory import compare_with_forecast
from zlaunch.runs.state import State
from zlaunch.runs.store import load_run
from zlaunch.runs.verdict import HEADS
from zlaunch.units import duration


@dataclass(frozen=True)
class FinishedRun:
    """What became of a job, and all that is known about it."""

    outcome: Outcome
    evidence: Evidence


def finish_run(plan: LaunchPlan, manner: MonitorOptions, evidence: Evidence, started: float) -> FinishedRun:
    """Judge a job that has ended, record it, tell it."""
    outcome = judge_outcome(evidence, diagnose(evidence))
    _record(plan, outcome, started, evidence.stall)
    if plan.layout.forecast.exists() and outcome.exit_status == 0:
        record = load_run(plan.layout.root)
        accuracy.record_accuracy(accuracy.default_accuracy_file(), record, compare_with_forecast(record))
    _tell(plan, manner, outcome, time.time() - started)
    return FinishedRun(outcome, evidence)


def record_failed_start(plan: LaunchPlan, error: ZlaunchError, started: float) -> None:
    """Record a job whose launcher did not start; the error is shown like any other."""
    code = "op-build-failed" if isinstance(error, NotBuilt) else "launcher-failed"
    verdict = Verdict(code, error.message, advice=(error.hint,) if error.hint else ())
    _record(plan, Outcome("failed", error.status, error.status, verdict), started)


def _record(plan: LaunchPlan, outcome: Outcome, started: float, stall: StallEvidence | None = None) -> None:
    """Write down how it ended; what cannot be written changes no exit status."""
    try:
        rundir_writer.write_outcome(plan.layout, outcome, started, stall)
    except OSError as error:
        console.say(f"{os.path.relpath(plan.layout.ending)} could not be written: {error.strerror}")


def _tell(plan: LaunchPlan, manner: MonitorOptions, outcome: Outcome, seconds: float) -> None:
    """Say how it ended, why, and where to look."""
    took, run = duration(seconds), os.path.relpath(plan.layout.root)
    about = f"all about this run is in {run}"
    if outcome.how == "finished":
        if (loss := loss_line(read_record(plan.layout.rank_heartbeat(0), HeartbeatRecord))) is not None:
            console.say(loss)
        if outcome.verdict is None:
            console.say(f"finished in {took}; {about}")
            if not manner.show_ranks:
                console.say(_printed(plan, 0))
            return
    assert outcome.verdict is not None
    lines = verdict_lines(outcome.verdict, f"{HEADS[State(outcome.how)]} {took}", console.width())
    if (rank := outcome.verdict.rank) is not None:
        lines += console.paragraph(_printed(plan, rank))
    for line in [*lines, *console.paragraph(about)]:
        console.say(line)


def _printed(plan: LaunchPlan, rank: int) -> str:
    return f"what rank {rank} printed is in {os.path.relpath(plan.layout.rank_log(rank))}"
