"""Stop a running run, and wait for the end of one."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from zlaunch.errors import Unavailable
from zlaunch.process import may_signal
from zlaunch.rundir.control import COMMAND, SAVE_COMMAND, ask_for_save, write_stop
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.owner import is_running, owner_process
from zlaunch.runs.run import Run, State
from zlaunch.runs.store import load_run

POLL_SECONDS = 0.2
LOOK_SECONDS = 1.0
"""How often all records are read, which takes longer than to see whether there is an ending."""


def stop_run(run: Run) -> str:
    """Ask a running run to stop, and say who was asked; the run records how it ended."""
    process = owner_process(run.job) if is_running(run.job) else None
    run_dir = RunDir(run.root)
    stop = os.path.relpath(run_dir.stop)
    if process is not None and not may_signal(process.pid):  # then its ranks must not read of it either
        raise Unavailable(f"zlaunch (process {process.pid}) belongs to `{process.username()}`")
    try:
        write_stop(run_dir, signal.SIGTERM, COMMAND)
    except OSError as error:
        if process is None:
            raise Unavailable(f"`{stop}` cannot be written: {error.strerror}") from None
    if process is None:
        return f"its ranks, through {stop}"
    with contextlib.suppress(psutil.Error):
        process.terminate()
    return f"zlaunch (process {process.pid})"


def save_run(run: Run) -> str:
    """Ask a running run to save and stop, and say who was asked."""
    run_dir = RunDir(run.root)
    try:
        ask_for_save(run_dir, SAVE_COMMAND)
    except OSError as error:
        file = os.path.relpath(run_dir.ask_save)
        raise Unavailable(f"`{file}` cannot be written: {error.strerror}") from None
    return f"zlaunch, through {os.path.relpath(run_dir.ask_save)},"


def wait_until_over(root: Path, seconds: float) -> Run:
    """Wait until a run is over, up to a number of seconds."""
    deadline, ended = time.monotonic() + seconds, may_have_ended(root)
    while time.monotonic() < deadline and not (ended() and load_run(root).state.is_over):
        time.sleep(POLL_SECONDS)
    return load_run(root)


def may_have_ended(root: Path) -> Callable[[], bool]:
    """Make a cheap check for whether to read all records of a run again."""
    ending, last = RunDir(root).ending, time.monotonic()

    def is_due() -> bool:
        nonlocal last
        if not ending.exists() and time.monotonic() < last + LOOK_SECONDS:
            return False
        last = time.monotonic()
        return True

    return is_due


def has_stopped(root: Path) -> Callable[[], bool]:
    """Make a check for followers of a run: whether it runs no longer, or cannot be seen from here."""
    is_due = may_have_ended(root)
    return lambda: is_due() and load_run(root).state is not State.RUNNING
