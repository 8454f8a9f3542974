"""The heartbeat of a script: phase, step and loss in a small file that is overwritten in place.

The file survives SIGKILL. A write takes a few microseconds. Nothing here raises into the script, not even
when the disk is full.
"""

import _thread
import atexit
import contextlib
import json
import math
import os
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from zlaunch.rundir import phases
from zlaunch.rundir.write import VERSION
from zlaunch.worker.hook.own_file import OwnFile
from zlaunch.worker.hook.step_clock import StepClock
from zlaunch.worker.hook.step_history import StepHistory

SIZE_BYTES = 2048

MOST_END_LOSSES = 11
END_SHARE = 4
"""The median of the end is that of so many of the last losses, and of at most a fourth of all."""


class Heartbeat:
    """The phase and the progress of this process."""

    def __init__(self, file: Path, history: Path | None = None) -> None:
        """Start with a file of full size: overwriting it needs no more disk space.

        The first rank also keeps a history of its steps.
        """
        self._home = (os.getpid(), _thread.get_ident())
        self._file = OwnFile(file)
        self.clock = StepClock()
        self._history: StepHistory | None = None
        if history is not None:
            self._history = StepHistory(history, self.clock.spent)
        self._encode = json.JSONEncoder(default=str).encode
        self._size = SIZE_BYTES
        self._facts: dict[str, object] = {"version": VERSION, "step": 0}
        self._known = self._encode(self._facts)[:-1].encode()
        """The facts as JSON without its last brace: most writes change only the phase."""
        self._since = time.time()
        self._losses: deque[float] = deque(maxlen=MOST_END_LOSSES)
        self._num_losses = 0
        self.phase = ""
        self.counts_steps = True
        """Whether DeepSpeed's engine counts the steps, rather than a Trainer or the script."""
        self.is_trainer = False
        """Whether a Trainer trains, which saves checkpoints itself."""
        self.enter(phases.STARTING)
        self.register_exit()

    def is_here(self) -> bool:
        """Whether this is the main thread of the script itself, not of a process that it forked."""
        return self._home == (os.getpid(), _thread.get_ident())

    def register_exit(self) -> None:
        """Run first when Python exits: handlers of others are no longer part of the training."""
        atexit.unregister(self._exiting)
        atexit.register(self._exiting)

    def _exiting(self) -> None:
        self.enter(phases.EXITING)
        if self._history is not None and self.is_here():
            with contextlib.suppress(OSError, ValueError):
                self._history.end()

    def enter(self, phase: str, **facts: object) -> str:
        """Enter a phase; return the one that ends."""
        before, self.phase = self.phase, phase
        self._since = time.time()
        self.clock.enter_phase(phase)
        if os.getpid() != self._home[0]:
            return before
        # Plain `try` below: this runs six times a step, between computations that empty the CPU's caches.
        try:
            self._keep(facts)
            if self._history is not None and before:
                self._history.phase_ended(before, self._since)
        except (OSError, ValueError, RuntimeError):
            pass
        return before

    def note(self, **facts: object) -> None:
        """Add facts to those that are known, and write them."""
        if os.getpid() != self._home[0]:
            return
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            self._keep(facts)

    def _keep(self, facts: Mapping[str, object]) -> None:
        if facts:
            self._facts.update(facts)
            self._remember(facts)
            self._known = self._encode(self._facts)[:-1].encode()
        times = f'"since": {self._since}, "time": {time.time()}'
        data = self._known + f', "phase": "{self.phase}", {times}}}'.encode()
        self._size = max(self._size, len(data))
        self._file.overwrite(data.ljust(self._size))
        if facts and self._history is not None:
            self._history.note(facts, self._facts.get("tokens"))

    def _remember(self, facts: Mapping[str, object]) -> None:
        """Keep the first loss, the step of the last, the last finite one, and since when a number is not.

        A Trainer logs the mean of several steps: losses that the engine was given come before it.
        """
        step, shown = self._facts["step"], "loss"
        if "step_loss" in self._facts:
            shown = "step_loss"
        if "loss" in facts:
            self._facts["loss_step"] = step
            if shown == "loss":
                self._facts["seen_loss_step"] = step
        loss = facts.get(shown)
        if loss is not None:
            if self._facts.get("first_loss") is None:
                self._facts["first_loss"] = loss
                self._num_losses = 0
            self._end_with(loss)
        self._watch("loss", loss, self._facts.get("seen_loss_step"))
        self._watch("grad_norm", facts.get("grad_norm"), facts.get("seen_loss_step", step))

    def _end_with(self, loss: object) -> None:
        """Keep the median of the last losses: the very last one may be that of a small batch."""
        if not isinstance(loss, int | float) or not math.isfinite(loss):
            return
        self._losses.append(loss)
        self._num_losses += 1
        count = min(MOST_END_LOSSES, max(1, self._num_losses // END_SHARE))
        count -= 1 - count % 2  # an odd number has a median of its own
        last = sorted([*self._losses][-count:])
        self._facts |= {"end_loss": last[count // 2], "end_losses": count}

    def _watch(self, name: str, value: object, step: object) -> None:
        if not isinstance(value, int | float):
            return
        if math.isfinite(value):
            self._facts.pop(f"{name}_lost", None)
            self._facts[f"finite_{name}_step"] = step
        else:
            self._facts.setdefault(f"{name}_lost", step)

    def get(self, name: str) -> object:
        """Return a fact; None if it is not known."""
        return self._facts.get(name)

    @property
    def step(self) -> int:
        """The number of the last step."""
        return cast("int", self._facts["step"])


_current: list[Heartbeat] = []


def start_heartbeat(file: Path, history: Path | None = None) -> Heartbeat:
    """Start the heartbeat of this process; that of the first rank keeps a history of its steps."""
    _current.append(Heartbeat(file, history))
    return _current[-1]


def current_heartbeat() -> Heartbeat | None:
    """Return the heartbeat of this process; None without zlaunch."""
    if not _current:
        return None
    return _current[-1]
