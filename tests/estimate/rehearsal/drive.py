"""What real swapping keeps beside tensors, as the kernel counts it: page-locked memory, and files.

DeepSpeed's `async_io` locks memory of its own, of which torch's allocator knows nothing.
"""

import os
from pathlib import Path
from typing import Any

_THAT_LOCK_OR_UNLOCK = (
    "new_cpu_locked_tensor",
    "free_cpu_locked_tensor",
    "async_pread",
    "async_pwrite",
    "sync_pread",
    "sync_pwrite",
    "wait",
)


class Drive:
    """One rank's directory to swap to, and the memory that is locked for that."""

    def __init__(self, folder: Path, rank: str) -> None:
        """Begin with a folder that all ranks share; what is this rank's lies in folders of its name."""
        self.folder = folder
        self._own = f"rank{rank}"
        self.most_locked = 0

    def look(self) -> None:
        """Look how much is locked."""
        self.most_locked = max(self.most_locked, locked_bytes())

    def bytes_in_files(self) -> int:
        """Add up the files of this rank."""
        files = (Path(root) / name for root, _, names in os.walk(self.folder) for name in names)
        return sum(file.stat().st_size for file in files if self._own in file.parts)

    def watch(self) -> None:
        """Look after each call of `async_io` that may lock memory or unlock it."""
        from deepspeed.ops.op_builder import AsyncIOBuilder

        module = AsyncIOBuilder().load(verbose=False)
        module.aio_handle = watched(module.aio_handle, self.look)


def watched(handle: Any, look: Any) -> Any:
    """Derive a class of handles of which every call is followed by a look."""

    def followed(name: str) -> Any:
        plain = getattr(handle, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            answer = plain(self, *args, **kwargs)
            look()
            return answer

        return call

    return type("Watched", (handle,), {name: followed(name) for name in _THAT_LOCK_OR_UNLOCK})


def locked_bytes() -> int:
    """Ask the kernel how much of this process may not be paged out."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmLck:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the kernel does not say how much is locked")
