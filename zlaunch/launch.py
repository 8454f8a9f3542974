"""Carrying out a plan: write the run directory, build ops, start, follow, record the end."""

import os
import time
from pathlib import Path

from zlaunch import console, rundir
from zlaunch.build import build_missing
from zlaunch.layout import RunLayout
from zlaunch.outcome import Outcome, judge_end
from zlaunch.plan import LaunchPlan
from zlaunch.process import Foreground, find_program
from zlaunch.units import duration

GRACE_SECONDS = 8.0
"""How long a job may take to end after it was told to; each rank gets 5 s of it."""


def carry_out(plan: LaunchPlan) -> int:
    """Run the job of a plan whose run directory was written; return the exit status."""
    environment = {**os.environ, **{name: variable.value for name, variable in plan.environment.items()}}
    started = time.time()
    try:
        stopped = build_missing(plan.ops, environment, plan.layout)
        outcome = Outcome("stopped", stopped) if stopped else _run(plan, environment)
    finally:
        rundir.remove_swap(plan)
    seconds = time.time() - started
    rundir.write_outcome(plan.layout, outcome, started, seconds)
    _tell(plan.layout, outcome, seconds)
    return outcome.exit_status


def _run(plan: LaunchPlan, environment: dict[str, str]) -> Outcome:
    program = find_program(plan.watched_argv[0])
    with plan.layout.launcher_log.open("wb") as log:
        job = Foreground([program, *plan.watched_argv[1:]], environment, log, GRACE_SECONDS)
    follower = _Follower(plan.layout.rank_log(0))
    status = job.wait(follower.pump)
    return judge_end(status, job.stopped_by, rundir.read_ranks(plan.layout))


class _Follower:
    """Passes on what is new in a log that another process writes."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = 0

    def pump(self) -> None:
        """Print what was added since the last call."""
        try:
            with self._file.open("rb") as log:
                log.seek(self._offset)
                chunk = log.read()
        except FileNotFoundError:
            return
        if chunk:
            self._offset += len(chunk)
            console.job_output(chunk)


def _tell(layout: RunLayout, outcome: Outcome, seconds: float) -> None:
    """Say in two lines how it ended and where to look."""
    took = duration(seconds)
    where = os.path.relpath(layout.root)
    match outcome.how:
        case "finished":
            console.say(f"finished in {took}; everything about this run is in {where}")
        case "stopped":
            console.say(f"stopped by a signal after {took}; everything about this run is in {where}")
        case _:
            console.say(_failure(layout, outcome, took))


def _failure(layout: RunLayout, outcome: Outcome, took: str) -> str:
    first = outcome.first_failure
    if first is None:
        tail = _last_lines(layout.launcher_log)
        return f"failed after {took}: the launcher ended with status {outcome.exit_status}\n{tail}\nsee {layout.launcher_log}"
    rank, log = first["rank"], layout.rank_log(first["rank"])
    returncode = first.get("returncode")
    ended = "was lost" if returncode is None else f"was killed by signal {-returncode}" if returncode < 0 else f"exited with {returncode}"
    text = f"failed after {took}: rank {rank} on {first['host']} {ended}"
    if rank != 0:
        text += f"\n{_last_lines(log)}"
    return f"{text}\nits log is {os.path.relpath(log)}"


def _last_lines(file: Path, count: int = 12) -> str:
    lines = file.read_text("utf-8", "replace").splitlines() if file.exists() else []
    return "\n".join(f"  {line}" for line in lines[-count:])
