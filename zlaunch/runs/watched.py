"""Runs that are watched: read again when something may have changed, and only what is new."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from zlaunch.runs.history import RunHistory
from zlaunch.runs.state import RunSummary
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
        self._summary: RunSummary | None = None
        self._next = 0.0

    @property
    def summary(self) -> RunSummary:
        """The run as it was less than a second ago, or longer if reading it takes long."""
        began = time.monotonic()
        if self._summary is None or began >= self._next:
            self._summary = load_run(self.root)
            took = time.monotonic() - began
            patience = OVER_SECONDS if self._summary.state.is_over else LOOK_SECONDS
            self._next = began + max(patience, took / LOOK_SHARE)
        return self._summary


class WatchedRuns:
    """All runs that are watched, by a name that only one of them has."""

    def __init__(self, roots: Callable[[], list[Path]]) -> None:
        """`roots` lists the directories of the runs, which may become more."""
        self._roots = roots
        self._known: dict[Path, WatchedRun] = {}

    def all(self) -> Mapping[str, WatchedRun]:
        """List the runs that are there now, in the order of their directories."""
        roots = self._roots()
        self._known = {root: self._known.get(root) or WatchedRun(root) for root in roots}
        names = [root.name for root in roots]
        return {
            root.name if names.count(root.name) == 1 else str(root): run for root, run in self._known.items()
        }
