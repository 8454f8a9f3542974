"""Choose the directory of a run."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from zlaunch.errors import Unavailable
from zlaunch.rundir.layout import RUNS, RunDir


def candidates(chosen: Path | None, name: str, beside: Path = RUNS) -> Iterator[RunDir]:
    """Propose run directories: the one that was asked for, or `runs/<time>-<name>`, numbered if taken."""
    if chosen is not None:
        yield RunDir(chosen.absolute())
        return
    root = beside.absolute()
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    for attempt in range(1, 1000):
        run_dir = RunDir(root / (name if attempt == 1 else f"{name}-{attempt}"))
        if not run_dir.root.exists():
            yield run_dir


def check_unused(directory: Path) -> None:
    """Raise Unavailable if a run directory is not empty."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Unavailable(
            f"`--run-dir {os.path.normpath(directory)}` is not empty",
            "choose a new directory: zlaunch never overwrites a run",
        )
