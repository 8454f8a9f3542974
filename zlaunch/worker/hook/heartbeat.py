"""What the script is doing now: a few facts in a small file, overwritten in place.

The file outlives any death, SIGKILL included. A write costs some microseconds; nothing here ever
raises into the script, not even on a full disk.
"""

import _thread
import atexit
import contextlib
import fcntl
import json
import math
import os
import time
from pathlib import Path
from typing import Any

from zlaunch.rundir import phases

SIZE_BYTES = 1024

FIRST_DESCRIPTOR = 200
"""Files are kept open from here on: the first one that the script opens gets the number it always gets."""


class Heartbeat:
    """The phase and the progress of this process."""

    def __init__(self, file: Path) -> None:
        """Begin with an empty file of full size: overwriting it needs no new room."""
        self._home = (os.getpid(), _thread.get_ident())
        self._descriptor, self._identity = -1, (0, 0)
        with contextlib.suppress(OSError):
            self._descriptor = open_apart(file)
            self._identity = _identity(self._descriptor)
        self._encode = json.JSONEncoder(default=str).encode
        self._size = SIZE_BYTES
        self._facts: dict[str, Any] = {"step": 0}
        self._known = self._encode(self._facts)
        """The facts as text: most writes change nothing but the phase."""
        self._since = time.time()
        self.phase = ""
        self.counts_steps = True
        """Whether DeepSpeed's engine counts the steps; a Trainer or the script itself may."""
        self.enter(phases.STARTING)
        self.heed_exit()

    def is_here(self) -> bool:
        """Whether this is the main thread of the script, and not of a process that it has forked."""
        return self._home == (os.getpid(), _thread.get_ident())

    def heed_exit(self) -> None:
        """Be the first that is told when Python leaves: what others do then is no training any more."""
        atexit.unregister(self._exiting)
        atexit.register(self._exiting)

    def _exiting(self) -> None:
        self.enter(phases.EXITING)

    def enter(self, phase: str, **facts: Any) -> str:
        """Begin a phase; return the one that ends."""
        before, self.phase = self.phase, phase
        self._since = time.time()
        self.note(**facts)
        return before

    def note(self, **facts: Any) -> None:
        """Write facts down, beside those that are known."""
        if os.getpid() != self._home[0]:
            return
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            if facts:
                self._facts.update(facts)
                self._remember(facts)
                self._known = self._encode(self._facts)
            times = f'"since": {self._since}, "time": {time.time()}'
            text = f'{self._known[:-1]}, "phase": "{self.phase}", {times}}}'
            self._size = max(self._size, len(text))
            # A script may close all files, and open its own: those are never written to.
            if _identity(self._descriptor) == self._identity:
                os.pwrite(self._descriptor, text.ljust(self._size).encode(), 0)

    def _remember(self, facts: dict[str, Any]) -> None:
        """Keep the first loss, the step of the last, and since which step a number is none."""
        step = self._facts["step"]
        if "loss" in facts:
            self._facts["loss_step"] = step
            if self._facts.get("first_loss") is None:
                self._facts["first_loss"] = facts["loss"]
        for name in ("loss", "grad_norm"):
            value, lost = facts.get(name), f"{name}_lost"
            if isinstance(value, float) and not math.isfinite(value):
                self._facts.setdefault(lost, step)
            elif name in facts:
                self._facts.pop(lost, None)

    def get(self, name: str) -> Any:
        """Read back what was noted."""
        return self._facts.get(name)


def open_apart(file: Path) -> int:
    """Open a file of zlaunch's own, empty, without taking a number that the script would get."""
    first = os.open(file, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC, 0o644)
    with contextlib.suppress(OSError):  # where few files may be open, it stays where it is
        apart = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR)
        os.close(first)
        return apart
    return first


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


_current: list[Heartbeat] = []


def start_heartbeat(file: Path) -> Heartbeat:
    """Begin the pulse of this process."""
    _current.append(Heartbeat(file))
    return _current[-1]


def current_heartbeat() -> Heartbeat | None:
    """Return the pulse of this process; None where nobody watches."""
    return _current[-1] if _current else None
