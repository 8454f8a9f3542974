"""Ledger → forecast: the fullest moment of each pool in each phase, and what it was full of."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from zlaunch.estimate.forecast import Forecast, Phase
from zlaunch.estimate.rehearsal.allocation_log import AllocationLog
from zlaunch.estimate.rehearsal.run import RehearsedRun

_POINTS = 1000
"""Points of a curve that a plot can show."""


def forecast(run: RehearsedRun, seconds: float) -> Forecast:
    """Sum a rehearsal up."""
    return Forecast(
        method="rehearsal",
        phases=_phases(run.ledger),
        parts=_parts(run.ledger),
        parameters=run.parameters,
        trainable=run.trainable,
        optimizer=run.optimizer,
        late_error=run.late_error,
        curve=tuple(_thinned(list(_curve(run.ledger)))),
        flops=run.flops,
        seconds=seconds,
        notes=run.notes,
    )


def _intervals(ledger: AllocationLog) -> Iterator[tuple[str, Sequence[tuple[str, str, int]]]]:
    """Cut the entries at the marks: what happened during each mark."""
    ends = [index for index, _ in ledger.marks[1:]] + [len(ledger.entries)]
    for (start, name), end in zip(ledger.marks, ends, strict=True):
        yield name, ledger.entries[start:end]


def _phases(ledger: AllocationLog) -> tuple[Phase, ...]:
    now: Counter[str] = Counter()
    found: dict[str, tuple[dict[str, int], dict[str, int]]] = {}
    for name, entries in _intervals(ledger):
        peak, _ = found.setdefault(name, (dict(now), {}))
        for pool, nbytes in now.items():
            peak[pool] = max(peak.get(pool, 0), nbytes)
        for pool, _, nbytes in entries:
            now[pool] += nbytes
            if now[pool] > peak.get(pool, 0):
                peak[pool] = now[pool]
        found[name] = (peak, dict(now))
    return tuple(Phase(name, peak, end) for name, (peak, end) in found.items())


def _parts(ledger: AllocationLog) -> dict[str, dict[str, int]]:
    """Say what each pool held when it was fullest."""
    now: Counter[str] = Counter()
    fullest: dict[str, tuple[int, int]] = {}
    for index, (pool, _, nbytes) in enumerate(ledger.entries):
        now[pool] += nbytes
        if now[pool] > fullest.get(pool, (0, 0))[0]:
            fullest[pool] = (now[pool], index)
    held: dict[str, Counter[str]] = {pool: Counter() for pool in fullest}
    for index, (pool, part, nbytes) in enumerate(ledger.entries):
        if pool in fullest and index <= fullest[pool][1]:
            held[pool][part] += nbytes
    return {pool: {part: n for part, n in parts.most_common() if n} for pool, parts in held.items()}


def _curve(ledger: AllocationLog) -> Iterator[tuple[str, int, int]]:
    """Follow the GPU's memory through the steps: phase, bytes in tensors, bytes reserved."""
    gpu = reserved = 0
    for name, entries in _intervals(ledger):
        for pool, _, nbytes in entries:
            gpu += nbytes if pool == "gpu" else 0
            reserved += nbytes if pool == "reserved" else 0
            if pool in ("gpu", "reserved"):
                yield name, gpu, reserved


def _thinned(points: list[tuple[str, int, int]]) -> Iterator[tuple[str, int, int]]:
    """Keep the highest point of each stretch, and the names of all phases."""
    width = max(1, len(points) // _POINTS)
    for _, same in groupby(enumerate(points), key=lambda p: (p[1][0], p[0] // width)):
        stretch = [point for _, point in same]
        yield max(stretch, key=lambda point: point[1])
