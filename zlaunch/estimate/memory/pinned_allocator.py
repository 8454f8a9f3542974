"""A model of the allocators of page-locked host memory: torch's caching one, and DeepSpeed's exact one.

ATen/core/CachingHostAllocator.h (torch 2.13) rounds a request up to a power of two and caches freed blocks
for requests of the same rounded size. It never splits, merges or releases blocks.
`PYTORCH_ALLOC_CONF=pinned_max_round_threshold_mb:N` disables rounding above N MiB.
"""

from collections import Counter


class PinnedAllocator:
    """The page-locked memory of one process; all sizes in bytes."""

    def __init__(self, max_round_bytes: int | None = None) -> None:
        """Start empty; requests above `max_round_bytes` are not rounded."""
        self.max_round_bytes = max_round_bytes
        self.live = 0
        """Requested bytes in use."""
        self.reserved = 0
        """Page-locked bytes, including cached blocks."""
        self.peak_live = 0
        self.peak_reserved = 0
        self._cached: Counter[int] = Counter()
        self._used: dict[int, tuple[int, int, bool]] = {}
        self._num_handles = 0

    def malloc(self, nbytes: int) -> int:
        """Allocate like `tensor.pin_memory()`; return a handle, 0 for 0 bytes."""
        if nbytes <= 0:
            return 0
        rounded = self._rounded(nbytes)
        if self._cached[rounded]:
            self._cached[rounded] -= 1
        else:
            self._lock(rounded)
        return self._use(nbytes, rounded, cached=True)

    def malloc_exact(self, nbytes: int) -> int:
        """Allocate like DeepSpeed's `new_cpu_locked_tensor`, without rounding and caching."""
        if nbytes <= 0:
            return 0
        self._lock(nbytes)
        return self._use(nbytes, nbytes, cached=False)

    def free(self, handle: int) -> None:
        """Free what a `malloc` returned; raise KeyError if it is not in use."""
        if not handle:
            return
        nbytes, locked, cached = self._used.pop(handle)
        self.live -= nbytes
        if cached:
            self._cached[locked] += 1
        else:
            self.reserved -= locked

    def _rounded(self, nbytes: int) -> int:
        """Round as `c10::llvm::PowerOf2Ceil` does."""
        if self.max_round_bytes is not None and nbytes > self.max_round_bytes:
            return nbytes
        return 1 << (nbytes - 1).bit_length()

    def _lock(self, nbytes: int) -> None:
        self.reserved += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _use(self, nbytes: int, locked: int, *, cached: bool) -> int:
        self.live += nbytes
        self.peak_live = max(self.peak_live, self.live)
        self._num_handles += 1
        self._used[self._num_handles] = (nbytes, locked, cached)
        return self._num_handles
