"""Control files, which ask the ranks of a run on all hosts to stop or to write their stacks."""

import signal

from zlaunch.files import write_whole
from zlaunch.rundir.layout import RunDir

COMMAND = "zlaunch runs stop"
"""Written into the stop file by that command."""

COORDINATOR = "because a host failed"
"""Written there by the coordinator of several hosts."""


def write_stop(run_dir: RunDir, number: int, by: str = "zlaunch") -> None:
    """Ask the ranks on all hosts to stop, as a signal would."""
    if not run_dir.stop.exists():
        write_whole(run_dir.stop, f"{int(number)} {by}")


def read_stop(run_dir: RunDir) -> int | None:
    """Read the signal that the run was asked to stop with, if any."""
    try:
        return signal.Signals(int(run_dir.stop.read_text().partition(" ")[0]))
    except (OSError, ValueError):
        return None


def requested_stop(run_dir: RunDir) -> int | None:
    """Read the signal that a person asked the run to stop with, if any."""
    try:
        return None if run_dir.stop.read_text().endswith(f" {COORDINATOR}") else read_stop(run_dir)
    except (OSError, ValueError):
        return None


def was_commanded(run_dir: RunDir) -> bool:
    """Whether `zlaunch runs stop` asked the run to stop."""
    try:
        return run_dir.stop.read_text().endswith(f" {COMMAND}")
    except (OSError, ValueError):
        return False


def ask_for_stacks(run_dir: RunDir) -> None:
    """Ask all ranks, on all hosts, to write their stacks."""
    write_whole(run_dir.ask_stacks, str(times_asked(run_dir) + 1))


def times_asked(run_dir: RunDir) -> int:
    """Count the requests for stacks; raise ValueError if the file holds no number."""
    return int(run_dir.ask_stacks.read_text()) if run_dir.ask_stacks.exists() else 0
