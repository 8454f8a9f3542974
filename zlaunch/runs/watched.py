"""Runs that are watched: read again when something may have changed, and only what is new."""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from zlaunch.runs.history import RunHistory
from zlaunch.runs.run import Run
from zlaunch.runs.store import load_run

LOOK_SECONDS: Final = 1.0
OVER_SECONDS: Final = 30.0
"""How often a run that is over is read again: its checkpoints may be pruned, its directory may be deleted."""
LOOK_SHARE: Final = 0.05
"""Most of the time that is spent on reading the records of a run with many ranks."""


class WatchedRun:
    """One run, with its history; its records are read at most once a second."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.history = RunHistory(root)
        self._run: Run | None = None
        self._next = 0.0

    @property
    def run(self) -> Run:
        """The run as it was less than a second ago, or longer if reading it takes long."""
        began = time.monotonic()
        if self._run is None or began >= self._next:
            self._run = load_run(self.root)
            self._run.read_all()
            took = time.monotonic() - began
            patience = OVER_SECONDS if self._run.state.is_over else LOOK_SECONDS
            self._next = began + max(patience, took / LOOK_SHARE)
        return self._run


class WatchedRuns:
    """All runs that are watched, by a name that only one of them has."""

    def __init__(self, roots: Callable[[], list[Path]]) -> None:
        """`roots` lists the directories of the runs, which may become more."""
        self._roots = roots
        self._known: dict[str, WatchedRun] = {}
        self._next = 0.0

    def all(self) -> Mapping[str, WatchedRun]:
        """List the runs in the order of their directories, as they were less than a second ago."""
        began = time.monotonic()
        if began >= self._next:
            before = {run.root: run for run in self._known.values()}
            roots = self._roots()
            names = Counter(root.name for root in roots)
            self._known = {
                root.name if names[root.name] == 1 else str(root): before.get(root) or WatchedRun(root)
                for root in roots
            }
            took = time.monotonic() - began
            self._next = began + max(LOOK_SECONDS, took / LOOK_SHARE)
        return self._known
