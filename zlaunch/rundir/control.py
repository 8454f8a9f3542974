"""Control files, which ask the ranks of a run on all hosts to save, to stop or to write their stacks."""

import signal
from pathlib import Path

from zlaunch.files import read_regular, write_whole
from zlaunch.rundir.layout import RunDir

COMMAND = "zlaunch runs stop"
"""Written into the stop file by that command."""
MEASURE_COMMAND = "zlaunch plan --measure"
"""Written there by that command, which ends a run after its steps."""
SAVE_COMMAND = f"`{COMMAND} --save`"
"""Written into the request to save by that command."""

COORDINATOR = "because a program failed"
"""Written there by programs on the hosts, when something has failed."""


def _text(file: Path) -> str:
    return read_regular(file).decode()


def write_stop(run_dir: RunDir, number: int, by: str = "zlaunch") -> None:
    """Ask the ranks on all hosts to stop, as a signal would."""
    if not run_dir.stop.exists():
        write_whole(run_dir.stop, f"{int(number)} {by}")


def read_stop(run_dir: RunDir) -> int | None:
    """Read the signal that the run was asked to stop with, if any."""
    try:
        return signal.Signals(int(_text(run_dir.stop).partition(" ")[0]))
    except (OSError, ValueError):
        return None


def requested_stop(run_dir: RunDir) -> int | None:
    """Read the signal that a person asked the run to stop with, if any."""
    try:
        if _text(run_dir.stop).endswith(f" {COORDINATOR}"):
            return None
        return read_stop(run_dir)
    except (OSError, ValueError):
        return None


def stopping_command(run_dir: RunDir) -> str | None:
    """Return the command of zlaunch that asked the run to stop; None if none did."""
    try:
        asker = _text(run_dir.stop).partition(" ")[2]
    except (OSError, ValueError):
        return None
    if asker in (COMMAND, MEASURE_COMMAND):
        return asker
    return None


def ask_for_save(run_dir: RunDir, by: str) -> None:
    """Ask the zlaunch of a run to have it saved and stopped."""
    write_whole(run_dir.ask_save, by)


def who_asked_for_save(run_dir: RunDir) -> str | None:
    """Read the source of a request to save and stop; None without a request."""
    try:
        return _text(run_dir.ask_save) or None
    except (OSError, ValueError):
        return None


def write_save_at(run_dir: RunDir, step: int | None, directory: str = "") -> None:
    """Have all ranks save after a step, and end; None only makes the file, before the ranks start.

    It is written in place: opening a file on a network file system reads its newest content, while a file
    that was missing may stay so for half a minute.
    """
    text = "" if step is None else f"{step} {directory}\n"
    with run_dir.save_at.open("w") as file:
        file.write(text)


def ask_for_stacks(run_dir: RunDir) -> None:
    """Ask all ranks, on all hosts, to write their stacks."""
    write_whole(run_dir.ask_stacks, str(times_asked(run_dir) + 1))


def times_asked(run_dir: RunDir) -> int:
    """Count the requests for stacks; raise ValueError if the file holds no number."""
    if run_dir.ask_stacks.exists():
        return int(_text(run_dir.ask_stacks))
    return 0
