"""What the script is doing now: a few facts in a small file, overwritten in place.

The file outlives any death, SIGKILL included. A write costs some microseconds; nothing here ever
raises into the script, not even on a full disk.
"""

import atexit
import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from zlaunch import phases

SIZE_BYTES = 1024


class Pulse:
    """The phase and the progress of this process."""

    def __init__(self, file: Path) -> None:
        """Begin with an empty file of full size: overwriting it needs no new room."""
        self._pid = os.getpid()
        self._descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        self._facts: dict[str, Any] = {"step": 0}
        self.phase = ""
        self.counts_steps = True
        """Whether DeepSpeed's engine counts the steps; a Trainer or the script itself may."""
        self.enter(phases.STARTING)
        self.heed_exit()

    def heed_exit(self) -> None:
        """Be the first that is told when Python leaves: what others do then is no training any more."""
        atexit.unregister(self._exiting)
        atexit.register(self._exiting)

    def _exiting(self) -> None:
        self.enter(phases.EXITING)

    def enter(self, phase: str) -> str:
        """Begin a phase; return the one that ends."""
        before, self.phase = self.phase, phase
        self.note(phase=phase, since=time.time())
        return before

    def note(self, **facts: Any) -> None:
        """Write facts down, beside those that are known."""
        self._facts.update(facts)
        self._facts["time"] = time.time()
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                text = json.dumps(self._facts, default=str)
                os.pwrite(self._descriptor, text.ljust(SIZE_BYTES).encode(), 0)

    def get(self, name: str) -> Any:
        """Read back what was noted."""
        return self._facts.get(name)


_current: list[Pulse] = []


def begin_pulse(file: Path) -> Pulse:
    """Begin the pulse of this process."""
    _current.append(Pulse(file))
    return _current[-1]


def current_pulse() -> Pulse | None:
    """Return the pulse of this process; None where nobody watches."""
    return _current[-1] if _current else None
