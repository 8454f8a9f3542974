"""The allocation log of a rehearsal, and its summary by phase and category."""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from zlaunch.estimate.forecast import Phase
from zlaunch.estimate.memory.allocators import CachingAllocator, PinnedAllocator

CurvePoint = tuple[str, int, int]
"""Phase, GPU bytes in tensors, GPU bytes reserved."""

_UNTOUCHED = "untouched"
"""What is allocated on the host and has no pages, because nothing has written it."""
_ADDRESSED = {"pageable": ("pageable", "addressed"), _UNTOUCHED: ("addressed",)}
"""Pool of an entry → the pools of a summary that it counts in."""

_CURVE_POINTS = 1000
"""Points of a curve that a plot can show."""


@dataclass(slots=True)
class Block:
    """An allocation that is in use; sizes in bytes."""

    pool: str
    category: str
    requested: int
    nbytes: int
    """The requested size, rounded as the pool rounds it."""
    address: int = -1
    untouched: int = 0
    """Bytes at its end that nothing has written yet, so that no page of the host is behind them."""


@dataclass
class AllocationLog:
    """All allocations and releases in order, and the index at which each phase begins.

    `locked` is page-locked memory that DeepSpeed's `async_io` allocates without rounding. It is logged
    in the pool `pinned`.
    """

    gpu: CachingAllocator = field(default_factory=CachingAllocator)
    pinned: PinnedAllocator = field(default_factory=PinnedAllocator)
    entries: list[tuple[str, str, int]] = field(default_factory=list)
    """Pool, category, bytes; negative for a release."""
    marks: list[tuple[int, str]] = field(default_factory=list)
    phase: str = ""
    files: dict[str, int] = field(default_factory=dict)

    def allocate(self, pool: str, category: str, nbytes: int, stream: int = 0) -> Block:
        """Log an allocation of `nbytes`, rounded as its pool rounds it."""
        block = Block(pool, category, nbytes, nbytes)
        if pool == "gpu":
            allocated, reserved = self.gpu.allocated, self.gpu.reserved
            block.address = self.gpu.malloc(nbytes, stream)
            block.nbytes = self.gpu.allocated - allocated
            self._log_reserved(self.gpu.reserved - reserved)
        elif pool == "pinned":
            block.nbytes = self.pinned.malloc(nbytes)
        self._log(block, block.nbytes)
        return block

    def allocate_untouched(self, pool: str, category: str, nbytes: int) -> Block:
        """Log an allocation of the address space alone; `touch` gives it pages."""
        block = Block(pool, category, nbytes, nbytes, untouched=nbytes)
        self.entries.append((_UNTOUCHED, category, nbytes))
        return block

    def touch(self, block: Block, end: int) -> None:
        """Log that a block is written, up to so many bytes after its beginning."""
        touched = end - (block.nbytes - block.untouched)
        if touched > 0:
            block.untouched -= touched
            self.entries.append((_UNTOUCHED, block.category, -touched))
            self._log(block, touched)

    def free(self, block: Block) -> None:
        """Log the release of a block; torch's pinned allocator keeps its blocks for reuse."""
        if block.pool == "pinned":
            self.pinned.free(block.requested)
            return
        if block.pool == "gpu":
            self.gpu.free(block.address)
        self._log(block, block.untouched - block.nbytes)
        if block.untouched:
            self.entries.append((_UNTOUCHED, block.category, -block.untouched))

    def extend_file(self, path: str, nbytes: int) -> bool:
        """Log that a file on NVMe has at least `nbytes`; return whether it grew."""
        growth = nbytes - self.files.get(path, 0)
        if growth <= 0:
            return False
        self.files[path] = nbytes
        self.entries.append(("nvme", self.phase, growth))
        return True

    def empty_cache(self) -> None:
        """Return the GPU allocator's unused segments to the driver."""
        reserved = self.gpu.reserved
        self.gpu.empty_cache()
        self._log_reserved(self.gpu.reserved - reserved)

    @contextlib.contextmanager
    def in_phase(self, name: str) -> Iterator[None]:
        """Attribute all entries inside to a phase."""
        self.phase = name
        self.marks.append((len(self.entries), name))
        yield

    def phases(self) -> tuple[Phase, ...]:
        """Return the peak and end of each pool in each phase, in which repeated ones are merged."""
        now: Counter[str] = Counter()
        peaks: dict[str, dict[str, int]] = {}
        ends: dict[str, dict[str, int]] = {}
        reached: dict[tuple[str, str], int] = {}  # phase, pool → entries until its peak
        counts_in: Mapping[str, tuple[str, ...]] = {}
        if any(pool == _UNTOUCHED for pool, _, _ in self.entries):
            counts_in = _ADDRESSED
        for name, start, end in self._intervals():
            peak = peaks.setdefault(name, {})
            for pool, nbytes in now.items():
                if nbytes > peak.get(pool, -1):
                    peak[pool], reached[name, pool] = nbytes, start
            for index, (logged, _, nbytes) in enumerate(self.entries[start:end], start + 1):
                for pool in counts_in.get(logged, (logged,)):
                    now[pool] += nbytes
                    if now[pool] > peak.get(pool, 0):
                        peak[pool], reached[name, pool] = now[pool], index
            ends[name] = dict(now)
        parts = self._parts_after(reached, counts_in)
        return tuple(Phase(name, peak, ends[name], parts.get(name, {})) for name, peak in peaks.items())

    def _parts_after(
        self, reached: Mapping[tuple[str, str], int], counts_in: Mapping[str, tuple[str, ...]]
    ) -> dict[str, dict[str, dict[str, int]]]:
        """Return what a pool held by category in a phase, after so many entries."""
        now: dict[str, Counter[str]] = defaultdict(Counter)
        parts: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
        done = 0
        for (phase, pool), index in sorted(reached.items(), key=lambda item: item[1]):
            for logged, category, nbytes in self.entries[done:index]:
                for held in counts_in.get(logged, (logged,)):
                    now[held][category] += nbytes
            done = index
            parts[phase][pool] = {name: n for name, n in now[pool].most_common() if n}
        return parts

    def curve(self) -> tuple[CurvePoint, ...]:
        """Return GPU memory over time, as the highest points of about `_CURVE_POINTS` intervals."""
        points = list(self._gpu_points())
        width = max(1, len(points) // _CURVE_POINTS)
        intervals = groupby(enumerate(points), key=lambda p: (p[1][0], p[0] // width))
        return tuple(max((point for _, point in same), key=lambda point: point[1]) for _, same in intervals)

    def _gpu_points(self) -> Iterator[CurvePoint]:
        sizes = {"gpu": 0, "reserved": 0}
        for name, start, end in self._intervals():
            for pool, _, nbytes in self.entries[start:end]:
                if pool in sizes:
                    sizes[pool] += nbytes
                    yield name, sizes["gpu"], sizes["reserved"]

    def _intervals(self) -> Iterator[tuple[str, int, int]]:
        for (start, name), (end, _) in pairwise([*self.marks, (len(self.entries), "")]):
            yield name, start, end

    def _log(self, block: Block, nbytes: int) -> None:
        pool = "pinned" if block.pool == "locked" else block.pool
        self.entries.append((pool, block.category, nbytes))

    def _log_reserved(self, nbytes: int) -> None:
        if nbytes:
            self.entries.append(("reserved", "other", nbytes))
