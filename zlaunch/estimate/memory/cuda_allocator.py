"""torch's caching allocator of GPU memory, without a GPU: which bytes `reserved` holds beyond `allocated`.

A model of c10/cuda/CUDACachingAllocator.cpp in its default configuration, rule for rule; the sizes are
those of c10/core/AllocatorConfig.h (torch 2.13). What is left out: memory used on a second stream
(`record_stream`) is free at once here, and `expandable_segments`, garbage collection and
`max_split_size_mb` are not modelled.
"""

from bisect import bisect_left, insort
from typing import Final

MIN_BLOCK_BYTES: Final = 512
"""kMinBlockSize: every request is rounded up to a multiple of this."""
SMALL_BYTES: Final = 1 << 20
"""kSmallSize: the largest request that is served from the small pool."""
SMALL_SEGMENT_BYTES: Final = 2 << 20
"""kSmallBuffer: what the small pool asks the driver for."""
LARGE_SEGMENT_BYTES: Final = 20 << 20
"""large_segment_size: what the large pool asks for, for requests below `MIN_LARGE_BYTES`."""
MIN_LARGE_BYTES: Final = 10 << 20
"""kMinLargeAlloc: from here on a request has a segment of its own."""
ROUND_LARGE_BYTES: Final = 2 << 20
"""kRoundLarge: such a segment is a multiple of this."""


class OutOfMemory(Exception):
    """The device is full, even after everything cached was given back; all sizes in bytes."""

    def __init__(self, asked: int, allocated: int, reserved: int, capacity: int) -> None:
        """Keep what was asked for, what tensors and the allocator hold, and what there is."""
        super().__init__(f"{asked} bytes asked for, {reserved} of {capacity} reserved, {allocated} used")
        self.asked = asked
        self.allocated = allocated
        self.reserved = reserved
        self.capacity = capacity


class _Block:
    """A run of bytes within a segment; `before` and `after` are its neighbours there."""

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
    """One device's memory, as torch's allocator shares it out; the best fit by size, then by address.

    `capacity` is what the allocator may take from the driver, in bytes: the device's memory less the
    CUDA context and what other libraries hold. Without one, memory never ends.
    """

    def __init__(self, capacity: int | None = None) -> None:
        """Begin with nothing reserved."""
        self.capacity = capacity
        self.allocated = 0
        """Bytes in blocks that are in use, rounded up as `torch.cuda.memory_allocated` counts them."""
        self.reserved = 0
        """Bytes taken from the driver, as `torch.cuda.memory_reserved` counts them."""
        self.peak_allocated = 0
        self.peak_reserved = 0
        self.num_retries = 0
        """How often the cache had to be emptied for a request."""
        self._pools: dict[tuple[int, bool], list[tuple[int, int]]] = {}
        self._blocks: dict[int, _Block] = {}
        self._next_address = ROUND_LARGE_BYTES

    def malloc(self, nbytes: int, stream: int = 0) -> int:
        """Take `nbytes` for a stream and return their address; raise OutOfMemory beyond the capacity.

        As in torch, nothing has no address: 0 bytes are at 0.
        """
        if nbytes <= 0:
            return 0
        size = -(-nbytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
        small = size <= SMALL_BYTES
        pool = self._pools.get((stream, small))
        if pool is None:
            pool = self._pools[stream, small] = []
        found = bisect_left(pool, (size, 0))
        if found < len(pool):
            block = self._blocks[pool.pop(found)[1]]
            block.free = False
        else:
            block = self._new_segment(size, pool, small=small)
        self._split(block, size)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block.address

    def free(self, address: int) -> None:
        """Give back what `malloc` returned; raise KeyError for what is not in use."""
        if not address:
            return
        block = self._blocks[address]
        if block.free:
            raise KeyError(address)
        self.allocated -= block.size
        block.free = True
        if block.before is not None and block.before.free:
            block = self._merge(block.before, block, listed=block.before)
        if block.after is not None and block.after.free:
            block = self._merge(block, block.after, listed=block.after)
        insort(block.pool, (block.size, block.address))

    def empty_cache(self) -> None:
        """Give every segment back to the driver of which no part is in use."""
        for pool in self._pools.values():
            kept = []
            for entry in pool:
                block = self._blocks[entry[1]]
                if block.before is None and block.after is None:
                    self.reserved -= block.size
                    del self._blocks[block.address]
                else:
                    kept.append(entry)
            pool[:] = kept

    def size_of(self, address: int) -> int:
        """Say how many bytes a block in use has: those asked for, and what was not worth splitting off."""
        return self._blocks[address].size

    def _new_segment(self, size: int, pool: list[tuple[int, int]], *, small: bool) -> _Block:
        """Ask the driver, a second time after emptying the cache."""
        segment = _segment_bytes(size)
        if self.capacity is not None and self.reserved + segment > self.capacity:
            self.num_retries += 1
            self.empty_cache()
            if self.reserved + segment > self.capacity:
                raise OutOfMemory(size, self.allocated, self.reserved, self.capacity)
        self.reserved += segment
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        block = _Block(self._next_address, segment, pool, small=small)
        self._next_address += segment
        self._blocks[block.address] = block
        return block

    def _split(self, block: _Block, size: int) -> None:
        """Cut off what a request leaves of a block, if it is worth keeping apart."""
        rest = block.size - size
        if rest < MIN_BLOCK_BYTES if block.small else rest <= SMALL_BYTES:
            return
        part = _Block(block.address + size, rest, block.pool, small=block.small)
        part.free = True
        part.before, part.after = block, block.after
        if block.after is not None:
            block.after.before = part
        block.after = part
        block.size = size
        self._blocks[part.address] = part
        insort(block.pool, (part.size, part.address))

    def _merge(self, low: _Block, high: _Block, *, listed: _Block) -> _Block:
        """Make one block of two neighbours, of which `listed` is in the list of free ones."""
        pool = listed.pool
        del pool[bisect_left(pool, (listed.size, listed.address))]
        del self._blocks[high.address]
        low.size += high.size
        low.after = high.after
        if high.after is not None:
            high.after.before = low
        return low


def _segment_bytes(size: int) -> int:
    """Say how much the driver is asked for when no cached block fits."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < MIN_LARGE_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-size // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES
