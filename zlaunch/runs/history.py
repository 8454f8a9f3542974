"""The steps and the memory of a run over time, read from its files as they grow."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from zlaunch.files import open_regular
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.read import parse_record
from zlaunch.rundir.record import MetricsRecord, StepRecord
from zlaunch.worker.hook.step_history import NUMBERS

MOST_STEPS: Final = 12_000
"""Lines of steps that are kept. Beyond it, two become one with the lowest and highest value of both."""
MOST_SAMPLES: Final = 4_000
"""The same for samples of memory, of which the larger one is kept."""
MOST_LINE_BYTES: Final = 1 << 22
"""A longer line is damaged."""

SIZES: Final = ("rss_bytes", "gpu_used_bytes")
"""Memory of a rank in a sample: of its process, and of its GPU."""

Line = TypeVar("Line", bound=Mapping[str, object])


class LineReader(Generic[Line]):
    """Reads the lines that were added to a file, and keeps at most a number of them."""

    def __init__(self, file: Path, kind: type[Line], join: Callable[[Line, Line], Line], most: int) -> None:
        """`join` makes one line of two that follow each other."""
        self._file, self._kind, self._join, self._most = file, kind, join, most
        self._offset, self._rest = 0, b""
        self.lines: list[Line] = []
        self.epoch = 0
        """How often lines were joined: a reader of lines before that has to read all again."""
        self.num_damaged = 0

    def update(self) -> None:
        """Read what is new; a file that cannot be read has nothing new."""
        try:
            with open_regular(self._file) as file:
                file.seek(self._offset)
                while block := file.read(MOST_LINE_BYTES):
                    self._offset += len(block)
                    self._take(block)
        except OSError:
            return

    def _take(self, block: bytes) -> None:
        *whole, self._rest = (self._rest + block).split(b"\n")
        if len(self._rest) > MOST_LINE_BYTES:
            whole, self._rest = [*whole, b""], b""
        for text in whole:
            if line := parse_record(text, self._kind):
                self.lines.append(line)
            else:
                self.num_damaged += 1
        while len(self.lines) > self._most:
            self.lines = list(self._joined(self.lines))
            self.epoch += 1

    def _joined(self, lines: Sequence[Line]) -> list[Line]:
        pairs = [self._join(*lines[at : at + 2]) for at in range(0, len(lines) - 1, 2)]
        return [*pairs, *lines[2 * len(pairs) :]]


class RunHistory:
    """The history of one run; `update` reads what its ranks have added."""

    def __init__(self, root: Path) -> None:
        run_dir = RunDir(root)
        self.steps = LineReader(run_dir.steps, StepRecord, join_steps, MOST_STEPS)
        self.samples = LineReader(run_dir.metrics, MetricsRecord, join_samples, MOST_SAMPLES)
        self._peaks: dict[str, dict[int, int]] = {name: {} for name in SIZES}
        self._peaks_of = (0, 0)
        """How often the samples were joined, and how many of them the peaks are of."""

    def update(self) -> None:
        """Read what is new."""
        self.steps.update()
        self.samples.update()
        epoch, num_samples = self._peaks_of
        if epoch != self.samples.epoch:
            num_samples = 0
        for line in self.samples.lines[num_samples:]:
            for name, peaks in self._peaks.items():
                for rank, size in memory_of_ranks(line, name).items():
                    peaks[rank] = max(size, peaks.get(rank, 0))
        self._peaks_of = (self.samples.epoch, len(self.samples.lines))

    def peaks(self, name: str) -> Mapping[int, int]:
        """Return the most memory of each rank in all samples, in bytes."""
        return self._peaks[name]

    @property
    def troubles(self) -> list[str]:
        """Say how many lines are damaged."""
        damaged = {"steps.jsonl": self.steps.num_damaged, "metrics.jsonl": self.samples.num_damaged}
        return [f"`{name}` has damaged lines: {count}" for name, count in damaged.items() if count]


def memory_of_ranks(line: MetricsRecord, name: str) -> dict[int, int]:
    """Read the memory of each rank from a sample, in bytes."""
    sizes = {}
    for sample in line.get("ranks", []):
        rank, size = sample.get("rank"), sample.get(name)
        if isinstance(rank, int) and isinstance(size, int) and size > 0:
            sizes[rank] = size
    return sizes


def span_of(line: StepRecord, name: str) -> tuple[float, float] | None:
    """Return the lowest and highest finite value of a number; None if there is none."""
    spread = line.get("range", {}).get(name)
    if spread is not None and len(spread) == 2:
        return spread[0], spread[1]
    value = line.get(name)
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value), float(value)
    return None


def num_not_finite(line: StepRecord, name: str) -> int:
    """Count the values of a number that are NaN or infinite."""
    value = line.get(name)
    is_lost = isinstance(value, float) and span_of(line, name) is None
    return max(line.get("not_finite", {}).get(name, 0), int(is_lost))


def join_steps(first: StepRecord, second: StepRecord) -> StepRecord:
    """Make one line of two, with the extremes of both and the last values."""
    joined: StepRecord = {**first, **second, "count": first.get("count", 1) + second.get("count", 1)}
    joined["range"], joined["not_finite"] = {}, {}
    for name in NUMBERS:
        spans = [span for line in (first, second) if (span := span_of(line, name)) is not None]
        lowest = min((low for low, _ in spans), default=0.0)
        highest = max((high for _, high in spans), default=0.0)
        if lowest < highest:
            joined["range"][name] = [lowest, highest]
        if lost := num_not_finite(first, name) + num_not_finite(second, name):
            joined["not_finite"][name] = lost
    phases = dict(first.get("phases", {}))
    for phase, seconds in second.get("phases", {}).items():
        phases[phase] = phases.get(phase, 0.0) + seconds
    if phases:
        joined["phases"] = phases
    return joined


def join_samples(first: MetricsRecord, second: MetricsRecord) -> MetricsRecord:
    """Make one sample of two, with the larger memory of each rank."""
    before = {sample.get("rank"): sample for sample in first.get("ranks", [])}
    ranks = [
        {**sample, **_larger(before.get(sample.get("rank"), {}), sample)}
        for sample in second.get("ranks", [])
    ]
    return {**first, **second, "ranks": ranks}


def _larger(first: Mapping[str, object], second: Mapping[str, object]) -> dict[str, int | str | None]:
    larger: dict[str, int | str | None] = {}
    for name in SIZES:
        sizes = [size for sample in (first, second) if isinstance(size := sample.get(name), int)]
        larger[name] = max(sizes, default=None)
    return larger
