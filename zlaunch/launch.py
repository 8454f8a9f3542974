"""Carrying out a plan: write the run directory, build ops, start, watch, say how it ended and why."""

import gc
import os
import signal
import sys
import time
from dataclasses import dataclass
from functools import partial

from zlaunch import console, experience, rundir
from zlaunch.build import NotBuilt, build_missing
from zlaunch.diagnosis import diagnose
from zlaunch.diagnosis.evidence import Evidence
from zlaunch.diagnosis.told import verdict_lines
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.environment import is_exported, is_secret
from zlaunch.errors import ExitStatus, ZlaunchError
from zlaunch.gathering import gather, tail
from zlaunch.measurement import compare
from zlaunch.outcome import Outcome, judge_end
from zlaunch.plan import LaunchPlan
from zlaunch.process import Foreground, find_program
from zlaunch.records import look_at
from zlaunch.sampling import oom_kills
from zlaunch.units import duration
from zlaunch.watch import Manner, Watch

GRACE_SECONDS = 8.0
"""How long a job may take to end after it was told to; each rank gets 5 s of it."""

LAST_LINES = 5
"""How much of a quiet job's output is shown when it has finished."""


@dataclass(frozen=True)
class Ended:
    """What became of a job, and all that is known about it."""

    outcome: Outcome
    evidence: Evidence


def carry_out(plan: LaunchPlan, manner: Manner) -> Ended:
    """Run the job of a plan whose run directory was written; say how it ended."""
    environment = {**_own(plan), **{name: variable.value for name, variable in plan.environment.items()}}
    gc.enable()
    started = time.time()
    outcome, evidence = Outcome("failed", ExitStatus.UNAVAILABLE, ExitStatus.UNAVAILABLE), Evidence()
    try:
        evidence = _build_and_run(plan, environment, manner)
        outcome = judge_end(evidence, diagnose(evidence))
    except ZlaunchError as error:
        outcome = _never_started(error)
        raise
    finally:
        rundir.remove_swap(plan)
        _record(plan, outcome, started)
    if plan.layout.forecast.exists() and outcome.exit_status == 0:
        record = look_at(plan.layout.root)
        experience.keep(experience.here(), record, compare(record))
    _tell(plan, manner, outcome, time.time() - started)
    return Ended(outcome, evidence)


def _build_and_run(plan: LaunchPlan, environment: dict[str, str], manner: Manner) -> Evidence:
    try:
        stopped_by = build_missing(plan.ops, environment, plan.layout)
        if stopped_by is None:
            return _run(plan, environment, manner)
    except KeyboardInterrupt:  # while nothing ran that could be told
        stopped_by = signal.SIGINT
    return Evidence(stopped_by=stopped_by)


def _never_started(error: ZlaunchError) -> Outcome:
    code = "op-build-failed" if isinstance(error, NotBuilt) else "launcher-failed"
    verdict = Verdict(code, error.message, advice=(error.hint,) if error.hint else ())
    return Outcome("failed", error.status, error.status, verdict)


def _record(plan: LaunchPlan, outcome: Outcome, started: float) -> None:
    """Write down how it ended; what cannot be written changes no exit status."""
    try:
        rundir.write_outcome(plan.layout, outcome, started)
    except OSError as error:
        console.say(f"{plan.layout.ending} could not be written: {error.strerror}")


def _own(plan: LaunchPlan) -> dict[str, str]:
    """Take the environment over, but for secrets that DeepSpeed's runner would log with its exports."""
    if not plan.topology.over_ssh:
        return dict(os.environ)
    return {name: value for name, value in os.environ.items() if not (is_secret(name) and is_exported(name))}


def _run(plan: LaunchPlan, environment: dict[str, str], manner: Manner) -> Evidence:
    layout, over_ssh = plan.layout, plan.topology.over_ssh
    guard = [sys.executable, "-m", "zlaunch.guard", str(layout.root)]
    launcher = [find_program(plan.watched_argv[0]), *plan.watched_argv[1:]]
    # DeepSpeed's runner would answer a signal by killing every job of this user on all hosts, by name.
    tell = partial(rundir.write_stop, layout) if over_ssh else None
    killed_before = oom_kills()
    with layout.launcher_log.open("wb") as log:
        job = Foreground([*guard, *launcher], environment, log, GRACE_SECONDS, tell)
    watch = Watch(layout, plan.topology.world_size, manner, lambda: job.on_signal(signal.SIGTERM, None))
    try:
        returncode = job.wait(partial(_follow, plan, watch, job))
    finally:
        watch.end()
    stopped_by = None if watch.stall else job.stopped_by
    killed = (oom_kills() or 0) - (killed_before or 0)
    return gather(layout, returncode, stopped_by, watch.stall, killed)


def _follow(plan: LaunchPlan, watch: Watch, job: Foreground) -> None:
    """Watch; when a rank has failed, end the other hosts: pdsh would wait for them; stop if told so."""
    watch.tick()
    if plan.topology.over_ssh and any(
        record.get("returncode") and record.get("stopped_by") is None
        for record in rundir.read_ranks(plan.layout)
    ):
        rundir.write_stop(plan.layout, signal.SIGTERM)
    elif job.stopped_by is None and plan.layout.stop.exists():
        job.on_signal(int(plan.layout.stop.read_text()), None)


def _tell(plan: LaunchPlan, manner: Manner, outcome: Outcome, seconds: float) -> None:
    """Say how it ended, why, and where to look."""
    took, run = duration(seconds), os.path.relpath(plan.layout.root)
    about = f"all about this run is in {run}"
    if outcome.how == "finished":
        if console.is_interactive() and not manner.show_ranks:
            for line in _last_lines(tail(plan.layout.rank_log(0))):
                console.data(line)
        if outcome.verdict is None:
            console.say(f"finished in {took}; {about}")
            return
    head = {
        "finished": "finished in",
        "stumbled": "trained to the end in",
        "stalled": "ended for its stall after",
    }.get(outcome.how, f"{outcome.how} after")
    assert outcome.verdict is not None
    lines = verdict_lines(outcome.verdict, f"{head} {took}", console.width())
    for line in [*lines, *console.paragraph(about)]:
        console.say(line)


def _last_lines(log: str) -> list[str]:
    """Take the last lines that say something, each as a terminal would have left it."""
    shown = [line.rstrip().rsplit("\r", 1)[-1] for line in log.split("\n")]
    return [line for line in shown if line.strip()][-LAST_LINES:]
