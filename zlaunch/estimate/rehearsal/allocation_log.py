"""Every allocation and every release of a rehearsal, in order."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from zlaunch.estimate.memory.cuda_allocator import CachingAllocator
from zlaunch.estimate.memory.pinned_allocator import PinnedAllocator

_COUNTED_AS = {"locked": "pinned"}


@dataclass(slots=True)
class Block:
    """An allocation that is in use."""

    pool: str
    part: str
    raw: int
    """What was asked for."""
    nbytes: int
    """What the pool gave for it."""
    address: int = -1


@dataclass
class AllocationLog:
    """The book: pool, part, bytes (taken or, below zero, given back), and where each phase begins."""

    gpu: CachingAllocator = field(default_factory=CachingAllocator)
    pinned: PinnedAllocator = field(default_factory=PinnedAllocator)
    entries: list[tuple[str, str, int]] = field(default_factory=list)
    marks: list[tuple[int, str]] = field(default_factory=list)
    phase: str = ""
    files: dict[str, int] = field(default_factory=dict)

    def take(self, pool: str, part: str, nbytes: int, stream: int = 0) -> Block:
        """Write down an allocation of so many bytes, as its pool rounds them."""
        block = Block(pool, part, nbytes, nbytes)
        if pool == "gpu":
            allocated, reserved = self.gpu.allocated, self.gpu.reserved
            block.address = self.gpu.malloc(nbytes, stream)
            block.nbytes = self.gpu.allocated - allocated
            self._reserve(self.gpu.reserved - reserved)
        elif pool in ("pinned", "locked"):
            malloc = self.pinned.malloc if pool == "pinned" else self.pinned.malloc_exact
            reserved = self.pinned.reserved
            block.address = malloc(nbytes)
            block.nbytes = self.pinned.reserved - reserved
        self.entries.append((_COUNTED_AS.get(pool, pool), part, block.nbytes))
        return block

    def give_back(self, block: Block) -> None:
        """Write down that a block is free; page-locked memory stays with its allocator."""
        if block.pool == "gpu":
            self.gpu.free(block.address)
        elif block.pool in ("pinned", "locked"):
            self.pinned.free(block.address)
            if block.pool == "pinned":
                return  # it stays with its allocator
        self.entries.append((_COUNTED_AS.get(block.pool, block.pool), block.part, -block.nbytes))

    def write(self, path: str, nbytes: int) -> bool:
        """Write down that a file on NVMe is at least so long; say whether that is news."""
        more = nbytes - self.files.get(path, 0)
        if more <= 0:
            return False
        self.files[path] = nbytes
        self.entries.append(("nvme", self.phase, more))
        return True

    def empty_cache(self) -> None:
        """Give what the GPU's allocator keeps unused back to the GPU."""
        reserved = self.gpu.reserved
        self.gpu.empty_cache()
        self._reserve(self.gpu.reserved - reserved)

    def _reserve(self, nbytes: int) -> None:
        if nbytes:
            self.entries.append(("reserved", "other", nbytes))

    @contextlib.contextmanager
    def in_phase(self, name: str) -> Iterator[None]:
        """Name what happens meanwhile."""
        self.phase = name
        self.marks.append((len(self.entries), name))
        yield
