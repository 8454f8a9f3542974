"""Carrying out a plan: write the run directory, build ops, start, follow, record the end."""

import gc
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

from zlaunch import console, rundir
from zlaunch.build import build_missing
from zlaunch.environment import is_exported, is_secret
from zlaunch.errors import ExitStatus
from zlaunch.outcome import Outcome, first_failure, judge_end
from zlaunch.plan import LaunchPlan
from zlaunch.process import Foreground, find_program
from zlaunch.units import duration

GRACE_SECONDS = 8.0
"""How long a job may take to end after it was told to; each rank gets 5 s of it."""


def carry_out(plan: LaunchPlan) -> int:
    """Run the job of a plan whose run directory was written; return the exit status."""
    environment = {**_own(plan), **{name: variable.value for name, variable in plan.environment.items()}}
    gc.enable()
    started = time.time()
    outcome = Outcome("failed", ExitStatus.UNAVAILABLE, ExitStatus.UNAVAILABLE)
    try:
        stopped_by = build_missing(plan.ops, environment, plan.layout)
        outcome = _run(plan, environment) if stopped_by is None else judge_end(0, stopped_by, [], 0)
    finally:
        rundir.remove_swap(plan)
        rundir.write_outcome(plan.layout, outcome, started)
    _tell(plan, outcome, time.time() - started)
    return outcome.exit_status


def _own(plan: LaunchPlan) -> dict[str, str]:
    """Take the environment over, but for secrets that DeepSpeed's runner would log with its exports."""
    if not plan.topology.over_ssh:
        return dict(os.environ)
    return {name: value for name, value in os.environ.items() if not (is_secret(name) and is_exported(name))}


def _run(plan: LaunchPlan, environment: dict[str, str]) -> Outcome:
    over_ssh = plan.topology.over_ssh
    guard = [
        sys.executable,
        "-m",
        "zlaunch.guard",
        str(os.getpid()),
        str(plan.layout.stop) if over_ssh else "-",
    ]
    launcher = [find_program(plan.watched_argv[0]), *plan.watched_argv[1:]]
    # DeepSpeed's runner would answer a signal by killing every job of this user on all hosts, by name.
    tell = partial(rundir.write_stop, plan.layout) if over_ssh else None
    with plan.layout.launcher_log.open("wb") as log:
        job = Foreground([*guard, *launcher], environment, log, GRACE_SECONDS, tell)
    returncode = job.wait(partial(_follow, plan, _Follower(plan.layout.rank_log(0))))
    ranks = rundir.read_ranks(plan.layout)
    return judge_end(returncode, job.stopped_by, ranks, plan.topology.world_size)


def _follow(plan: LaunchPlan, log: "_Follower") -> None:
    """Show what is new, and end the other hosts when one has failed: pdsh would wait for them."""
    log.pump()
    if plan.topology.over_ssh and first_failure(rundir.read_ranks(plan.layout)):
        rundir.write_stop(plan.layout, signal.SIGTERM)


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


def _tell(plan: LaunchPlan, outcome: Outcome, seconds: float) -> None:
    """Say how it ended and where to look."""
    took, run = duration(seconds), os.path.relpath(plan.layout.root)
    match outcome.how:
        case "finished":
            console.say(f"finished in {took}; all about this run is in {run}")
        case "stopped":
            console.say(
                f"stopped by {_name(-outcome.returncode)} after {took}; all about this run is in {run}"
            )
        case _:
            console.say(f"failed after {took}: {_cause(plan, outcome)}")


def _cause(plan: LaunchPlan, outcome: Outcome) -> str:
    layout, first = plan.layout, outcome.first_failure
    if first is None:
        text, log = f"{plan.launcher} {_ended(outcome.returncode)}", layout.launcher_log
        printed = _last_lines(log)
    else:
        rank = int(first["rank"])
        status = "was lost with its launcher" if "returncode" not in first else _ended(outcome.returncode)
        text, log = f"rank {rank} on {first['host']} {status}", layout.rank_log(rank)
        printed = [] if rank == 0 else _last_lines(log)
    return "\n".join([text, *printed, f"its log is {os.path.relpath(log)}"])


def _ended(returncode: int) -> str:
    return f"was killed by {_name(-returncode)}" if returncode < 0 else f"exited with status {returncode}"


def _name(number: int) -> str:
    """Name a signal; real-time signals have no name."""
    return signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"


def _last_lines(file: Path, count: int = 12) -> list[str]:
    lines = file.read_text("utf-8", "replace").splitlines() if file.exists() else []
    return [f"  {line}" for line in lines[-count:]]
