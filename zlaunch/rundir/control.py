"""What the ranks of a run are told, on all hosts: through files in its directory."""

import signal

from zlaunch.files import write_whole
from zlaunch.rundir.layout import RunDir

COMMAND = "zlaunch runs stop"
"""Who told a run to stop, if a person asked for just that."""


def write_stop(layout: RunDir, number: int, by: str = "zlaunch") -> None:
    """Tell the ranks on all hosts to stop, as a signal would, and who says so."""
    if not layout.stop.exists():
        write_whole(layout.stop, f"{int(number)} {by}")


def read_stop(layout: RunDir) -> int | None:
    """Read the signal that somebody told the run to stop with; None if nobody did."""
    try:
        return signal.Signals(int(layout.stop.read_text().partition(" ")[0]))
    except (OSError, ValueError):
        return None


def was_commanded(layout: RunDir) -> bool:
    """Whether `zlaunch runs stop` told the run to stop."""
    try:
        return layout.stop.read_text().endswith(f" {COMMAND}")
    except (OSError, ValueError):
        return False


def ask_for_stacks(layout: RunDir) -> None:
    """Ask all ranks, on all hosts, to write down where they are."""
    write_whole(layout.ask_stacks, str(times_asked(layout) + 1))


def times_asked(layout: RunDir) -> int:
    """Read how often the ranks were asked for that; raise ValueError if somebody wrote something else."""
    return int(layout.ask_stacks.read_text()) if layout.ask_stacks.exists() else 0
