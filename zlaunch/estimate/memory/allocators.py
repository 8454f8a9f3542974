"""Models of torch's allocators, which compute reserved bytes from a sequence of allocations.

`CachingAllocator` follows c10/cuda/CUDACachingAllocator.cpp in its default configuration, with the constants
of c10/core/AllocatorConfig.h (torch 2.13). Not modelled: `expandable_segments`, garbage collection and
`max_split_size_mb`.
"""

from bisect import bisect_left, insort
from collections import Counter
from typing import Final

MIN_BLOCK_BYTES: Final = 512
"""kMinBlockSize: requests are rounded up to a multiple of this."""
SMALL_BYTES: Final = 1 << 20
"""kSmallSize: the largest request for the small pool."""
SMALL_SEGMENT_BYTES: Final = 2 << 20
"""kSmallBuffer: segment size of the small pool."""
LARGE_SEGMENT_BYTES: Final = 20 << 20
"""large_segment_size: segment size of the large pool for requests below `MIN_LARGE_BYTES`."""
MIN_LARGE_BYTES: Final = 10 << 20
"""kMinLargeAlloc: requests of at least this size get their own segment."""
ROUND_LARGE_BYTES: Final = 2 << 20
"""kRoundLarge: those segments are rounded up to a multiple of this."""


class _Block:
    """A block within a segment, with its neighbors `before` and `after`."""

    __slots__ = ("address", "after", "before", "free", "pool", "size", "small")

    def __init__(self, address: int, size: int, pool: list[tuple[int, int]], *, small: bool) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.small = small
        self.free = False
        self.before: _Block | None = None
        self.after: _Block | None = None


class CachingAllocator:
    """The allocator of one device without a limit: best fit by size, then by address."""

    def __init__(self) -> None:
        self.allocated = 0
        """Bytes in used blocks, as `torch.cuda.memory_allocated` counts them."""
        self.reserved = 0
        """Bytes in segments, as `torch.cuda.memory_reserved` counts them."""
        self._pools: dict[tuple[int, bool], list[tuple[int, int]]] = {}
        self._blocks: dict[int, _Block] = {}
        self._next_address = ROUND_LARGE_BYTES
        self._used_elsewhere: set[int] = set()
        """Blocks in use that a stream other than their own works on."""
        self._just_freed: list[int] = []
        self._freed_before: list[int] = []

    def malloc(self, nbytes: int, stream: int = 0) -> int:
        """Allocate `nbytes` for a stream; return the address, 0 for 0 bytes."""
        if nbytes <= 0:
            return 0
        self._process_events()
        size = -(-nbytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
        small = size <= SMALL_BYTES
        pool = self._pools.setdefault((stream, small), [])
        position = bisect_left(pool, (size, 0))
        if position < len(pool):
            block = self._blocks[pool.pop(position)[1]]
            block.free = False
        else:
            block = self._new_segment(size, pool, small=small)
        self._split(block, size)
        self.allocated += block.size
        return block.address

    def free(self, address: int) -> None:
        """Free what `malloc` returned; raise KeyError if it is not in use."""
        if not address:
            return
        block = self._blocks[address]
        if block.free:
            raise KeyError(address)
        self.allocated -= block.size
        if address in self._used_elsewhere:
            self._used_elsewhere.remove(address)
            self._just_freed.append(address)
            return
        self._make_reusable(block)

    def record_stream(self, address: int, stream: int) -> None:
        """Note that a stream works on a block: unless it is its own, the block is reused later than freed."""
        block = self._blocks[address]
        if self._pools.get((stream, block.small)) is not block.pool:
            self._used_elsewhere.add(address)

    def _process_events(self) -> None:
        """Make blocks reusable on which another stream worked.

        The event that `free` records has not happened yet at the next allocation, but at the one after it.
        """
        for address in self._freed_before:
            self._make_reusable(self._blocks[address])
        self._freed_before, self._just_freed = self._just_freed, []

    def _make_reusable(self, block: _Block) -> None:
        block.free = True
        if block.before is not None and block.before.free:
            block = self._merge(block.before, block, listed=block.before)
        if block.after is not None and block.after.free:
            block = self._merge(block, block.after, listed=block.after)
        insort(block.pool, (block.size, block.address))

    def empty_cache(self) -> None:
        """Return all segments without a used block to the driver, after all streams have done their work."""
        self._process_events()
        self._process_events()
        for pool in self._pools.values():
            remaining = []
            for entry in pool:
                block = self._blocks[entry[1]]
                if block.before is None and block.after is None:
                    self.reserved -= block.size
                    del self._blocks[block.address]
                else:
                    remaining.append(entry)
            pool[:] = remaining

    def _new_segment(self, size: int, pool: list[tuple[int, int]], *, small: bool) -> _Block:
        segment = _segment_bytes(size)
        self.reserved += segment
        block = _Block(self._next_address, segment, pool, small=small)
        self._next_address += segment
        self._blocks[block.address] = block
        return block

    def _split(self, block: _Block, size: int) -> None:
        """Split off the remainder of a block if it is large enough (`should_split`)."""
        rest = block.size - size
        least = SMALL_BYTES + 1
        if block.small:
            least = MIN_BLOCK_BYTES
        if rest < least:
            return
        new = _Block(block.address + size, rest, block.pool, small=block.small)
        new.free = True
        new.before, new.after = block, block.after
        if block.after is not None:
            block.after.before = new
        block.after = new
        block.size = size
        self._blocks[new.address] = new
        insort(block.pool, (new.size, new.address))

    def _merge(self, low: _Block, high: _Block, *, listed: _Block) -> _Block:
        """Merge two neighbors, of which `listed` is in the pool of free blocks."""
        pool = listed.pool
        del pool[bisect_left(pool, (listed.size, listed.address))]
        del self._blocks[high.address]
        low.size += high.size
        low.after = high.after
        if high.after is not None:
            high.after.before = low
        return low


def _segment_bytes(size: int) -> int:
    """Return the size of a new segment for a request (`get_allocation_size`)."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < MIN_LARGE_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-size // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


class PinnedAllocator:
    """torch's page-locked host memory (ATen/core/CachingHostAllocator.h, torch 2.13).

    It rounds a request up to a power of two and caches freed blocks for requests of the same rounded size. It
    never splits, merges or releases blocks.
    """

    def __init__(self) -> None:
        self._cached: Counter[int] = Counter()

    def malloc(self, nbytes: int) -> int:
        """Allocate like `tensor.pin_memory()`; return how many more bytes are locked."""
        size = power_of_two(nbytes)
        if self._cached[size]:
            self._cached[size] -= 1
            return 0
        return size

    def free(self, nbytes: int) -> None:
        """Free what a `malloc` of `nbytes` allocated; it stays locked."""
        self._cached[power_of_two(nbytes)] += 1


def power_of_two(nbytes: int) -> int:
    """Round up as `c10::llvm::PowerOf2Ceil` does; 0 stays 0."""
    if nbytes <= 0:
        return 0
    return 1 << (nbytes - 1).bit_length()
