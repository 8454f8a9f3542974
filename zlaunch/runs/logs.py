"""The logs of a run."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from zlaunch.errors import InputMissing
from zlaunch.files import BLOCK_BYTES, last_lines
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


def read_log(log: Path, tail: int | None) -> bytes:
    """Read a log, or its last lines."""
    return log.read_bytes() if tail is None else b"".join(last_lines(log, tail))


def follow(log: Path, offset: int, is_over: Callable[[], bool]) -> Iterator[bytes]:
    """Yield what is added to a log beyond an offset, until its run is over."""
    while True:
        over = is_over()
        with log.open("rb") as file:
            file.seek(offset)
            while chunk := file.read(BLOCK_BYTES):
                offset += len(chunk)
                yield chunk
        if over:
            return
        time.sleep(POLL_SECONDS)
