"""The logs of a run."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from zlaunch.errors import InputMissing
from zlaunch.files import read_from, start_of_lines
from zlaunch.rundir.layout import RunDir
from zlaunch.runs.stop import POLL_SECONDS


def log_of(root: Path, rank: int | None, launcher: bool) -> Path:
    """Find a log of a run; raise InputMissing naming those that are there."""
    run_dir = RunDir(root)
    log = run_dir.launcher_log if launcher else run_dir.rank_log(rank or 0)
    if not log.exists():
        there = ", ".join(sorted(file.name for file in run_dir.logs.glob("*.log"))) or "none"
        raise InputMissing(
            f"{root.name} has no log `{log.name}`; its logs: {there}",
            "choose one with `--rank N` or `--launcher`",
        )
    return log


def start_of(log: Path, tail: int | None) -> int:
    """Where to begin in a log: at its last lines, or at its start."""
    if tail is None:
        return 0
    return start_of_lines(log, tail)


def follow(log: Path, offset: int, is_over: Callable[[], bool]) -> Iterator[bytes]:
    """Yield what is added to a log beyond an offset, until its run is over."""
    while True:
        over = is_over()
        for chunk in read_from(log, offset):
            offset += len(chunk)
            yield chunk
        if over:
            return
        time.sleep(POLL_SECONDS)
