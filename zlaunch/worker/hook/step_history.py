"""Keep the history of a run: loss, learning rate and the time of each phase, in one line per step of rank 0.

The file only grows, and ever more slowly: after each `LINES` lines, a line stands for twice as many steps,
and has the lowest and highest value of each number. So no spike is lost, and a million steps take 20 MB.
"""

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from zlaunch.rundir import phases
from zlaunch.rundir.write import VERSION
from zlaunch.worker.hook.own_file import OwnFile

NUMBERS: Final = (
    *("loss", "step_loss", "eval_loss", "learning_rate", "grad_norm", "loss_scale", "step_seconds"),
)

LINES: Final = 10_000
"""Lines of one step each; the next ones are of two steps each, then of four."""

PHASE_SECONDS: Final = 1.0
"""Minimum time between two lines with the times of phases."""

SILENT_SECONDS: Final = 30.0
"""The same while a script computes without taking steps."""


class StepHistory:
    """Collects the numbers of a step, and writes its line when the next step ends."""

    def __init__(self, file: Path, spent: Mapping[str, float], lines: int = LINES) -> None:
        """Begin with an empty file; `spent` grows: part of a step → seconds since the start."""
        self._file = OwnFile(file)
        self._encode = json.JSONEncoder(default=str).encode
        self._lines = self._lines_left = lines
        self._steps_per_line = 1
        self._step: object = 0
        self._count = 0
        """Steps in the line that is being collected."""
        self._line: dict[str, object] = {}
        self._last: dict[str, float] = {}
        self._range: dict[str, tuple[float, float]] = {}
        self._not_finite: dict[str, int] = {}
        self._coming: dict[str, float] = {}
        """Numbers of the step that has not ended yet."""
        self._spent, self._written = spent, dict[str, float]()
        self._spent_written = time.time()

    def phase_ended(self, phase: str, now: float) -> None:
        """Write the time of all parts if it is long ago. May raise OSError."""
        patience = PHASE_SECONDS
        if phase in phases.STEPS:
            patience = SILENT_SECONDS
        if self._is_time(now, patience):
            self._write({"step": self._step, "time": round(now, 3), "count": 0}, now)

    def note(self, facts: Mapping[str, object], tokens: object) -> None:
        """Add facts to the step that they name, or else to the step that ends next. May raise OSError."""
        numbers: dict[str, float] = {}
        for name in NUMBERS:
            value = facts.get(name)
            if isinstance(value, int | float):
                numbers[name] = float(f"{value:.7g}")
        step = facts.get("step")
        if step is None:
            self._coming.update(numbers)
            return
        if step != self._step:
            self._begin(step, tokens)
        self._add(numbers)

    def end(self) -> None:
        """Write all that is known. May raise OSError."""
        now = time.time()
        line = self._line or {"step": self._step, "time": round(now, 3), "count": 0}
        self._spent_written = -math.inf
        self._write({**line, **self._numbers()}, now)
        self._line, self._count = {}, 0

    def _begin(self, step: object, tokens: object) -> None:
        """Begin a step, and a new line if the last one is full or the script counts from 0 again."""
        now = time.time()
        is_full = self._count >= self._steps_per_line
        if self._line and (is_full or not isinstance(step, int) or step < int(str(self._step))):
            self._write({**self._line, **self._numbers()}, now)
            self._count, self._range, self._last, self._not_finite = 0, {}, {}, {}
        self._step, self._count = step, self._count + 1
        self._line = {"step": step, "time": round(now, 3)}
        if tokens is not None:
            self._line["tokens"] = tokens
        coming, self._coming = self._coming, {}
        self._add(coming)

    def _add(self, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self._last[name] = value
            if math.isfinite(value):
                low, high = self._range.get(name, (value, value))
                self._range[name] = (min(low, value), max(high, value))
            else:
                self._not_finite[name] = self._not_finite.get(name, 0) + 1

    def _numbers(self) -> dict[str, object]:
        if self._count < 2:
            return dict(self._last)
        spread = {name: span for name, span in self._range.items() if span[0] < span[1]}
        numbers: dict[str, object] = {"count": self._count, **self._last, "range": spread}
        if self._not_finite:
            numbers["not_finite"] = self._not_finite
        return numbers

    def _is_time(self, now: float, patience: float) -> bool:
        return now - self._spent_written >= patience * self._steps_per_line

    def _since_last(self) -> dict[str, float]:
        before, self._written = self._written, dict(self._spent)
        seconds = {part: value - before.get(part, 0.0) for part, value in self._written.items()}
        return {part: round(value, 3) for part, value in seconds.items() if part and value > 0}

    def _write(self, line: Mapping[str, object], now: float) -> None:
        spent = {}
        if self._is_time(now, PHASE_SECONDS):
            spent = {"phases": self._since_last()}
            self._spent_written = now
        self._lines_left -= 1
        if self._lines_left == 0:
            self._lines_left, self._steps_per_line = self._lines, 2 * self._steps_per_line
        self._file.append(f"{self._encode({'version': VERSION, **line, **spent})}\n".encode())
