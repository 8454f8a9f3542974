"""A model of torch's allocator of page-locked host memory.

ATen/core/CachingHostAllocator.h (torch 2.13) rounds a request up to a power of two and caches freed blocks
for requests of the same rounded size. It never splits, merges or releases blocks. All sizes in bytes.
"""

from collections import Counter


class PinnedAllocator:
    """The page-locked memory of one process."""

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
    return 1 << (nbytes - 1).bit_length() if nbytes > 0 else 0
