"""Say during a run what limits its speed, once it lasts."""

import contextlib
import time
from pathlib import Path
from typing import Final

from zlaunch.launch.reporter import Reporter
from zlaunch.runs.run import Run
from zlaunch.runs.step_time import step_time

LOOK_SECONDS: Final = 60.0
MOST_OF_THE_TIME: Final = 0.01
"""Share of its time that a monitor looks."""


class SpeedWatch:
    """Looks at the time of the steps now and then, and reports what costs most, each thing once."""

    def __init__(self, root: Path, now: float, reporter: Reporter) -> None:
        """Begin at a time of a monotonic clock."""
        self._root, self._reporter = root, reporter
        self._next = now + LOOK_SECONDS
        self._before = ""
        """What cost most at the last look."""
        self._reported: set[str] = set()
        self.mfu: float | None = None
        """Model FLOPs utilization of all steps up to the last look; None if unknown."""

    def tick(self, now: float) -> None:
        """Look if it is time: what cost most twice in a row lasts."""
        if now < self._next:
            return
        began, found = time.monotonic(), None
        with contextlib.suppress(Exception):  # whatever is wrong with what was measured, the job goes on
            found = step_time(Run(self._root))
        took = time.monotonic() - began  # more the longer a run is
        self._next = now + max(LOOK_SECONDS, took / MOST_OF_THE_TIME)
        self.mfu = None if found is None else found.throughput.mfu
        if found is None or not found.losses:
            self._before = ""
            return
        verdict = found.losses[0].verdict
        if verdict.code == self._before and verdict.code not in self._reported:
            self._reported.add(verdict.code)
            self._reporter.slowed(found.losses[:1])
        self._before = verdict.code
