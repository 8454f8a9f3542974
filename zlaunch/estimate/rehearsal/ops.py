"""Native ops that compute nothing: what they would allocate, pin or write is in the ledger."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from zlaunch.estimate.rehearsal.allocation_log import AllocationLog
from zlaunch.estimate.rehearsal.fake_tensors import FakeGpuMode


class NoOp:
    """A compiled op, any of whose functions does nothing."""

    def __getattr__(self, _: str) -> Any:
        return lambda *args, **kwargs: None


class AioHandle:
    """Asynchronous file I/O that remembers how large each file became."""

    def __init__(self, mode: FakeGpuMode) -> None:
        """Begin without files."""
        self._mode = mode
        self._pending = 0

    def new_cpu_locked_tensor(self, numel: int, like: torch.Tensor) -> torch.Tensor:
        """Page-lock exactly that many elements."""
        with self._mode.locking("locked"):
            return torch.empty(int(numel), dtype=like.dtype, device="cpu")

    def free_cpu_locked_tensor(self, _: torch.Tensor) -> bool:
        """The last reference frees it."""
        return True

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Ask the ledger."""
        return self._mode.is_pinned(tensor)

    def async_pwrite(self, tensor: torch.Tensor, path: str, offset: int = 0) -> int:
        """Begin to write; the file holds its size alone, and DeepSpeed copies it to a checkpoint."""
        nbytes = offset + tensor.numel() * tensor.element_size()
        if self._mode.ledger.write(path, nbytes):
            Path(path).write_text(str(nbytes))
        self._pending += 1
        return 0

    def async_pread(self, _tensor: torch.Tensor, _path: str, _offset: int = 0) -> int:
        """Begin to read."""
        self._pending += 1
        return 0

    def sync_pwrite(self, tensor: torch.Tensor, path: str, offset: int = 0) -> int:
        """Write; one operation is done."""
        self.async_pwrite(tensor, path, offset)
        return self.wait()

    def sync_pread(self, tensor: torch.Tensor, path: str, offset: int = 0) -> int:
        """Read; one operation is done."""
        self.async_pread(tensor, path, offset)
        return self.wait()

    def pwrite(self, tensor: torch.Tensor, path: str, _validate: bool, _async: bool, offset: int = 0) -> int:
        """Write, now or later."""
        return self.async_pwrite(tensor, path, offset) if _async else self.sync_pwrite(tensor, path, offset)

    def pread(self, tensor: torch.Tensor, path: str, _validate: bool, _async: bool, offset: int = 0) -> int:
        """Read, now or later."""
        return self.async_pread(tensor, path, offset) if _async else self.sync_pread(tensor, path, offset)

    def read(self, _tensor: torch.Tensor, _path: str, _validate: bool, _offset: int = 0) -> int:
        """Read; one operation is done."""
        return 1

    def write(self, tensor: torch.Tensor, path: str, _validate: bool, offset: int = 0) -> int:
        """Write; one operation is done."""
        return self.sync_pwrite(tensor, path, offset)

    def wait(self) -> int:
        """Say how many operations have ended since."""
        done, self._pending = self._pending, 0
        return done

    def get_alignment(self) -> int:
        """Say to how many bytes files are aligned."""
        return 1

    def get_intra_op_parallelism(self) -> int:
        """Say how many threads write."""
        return 1


def count_files(ledger: AllocationLog, drive: Path) -> None:
    """Count files that were copied there, as far as they were not written there."""
    for path in drive.rglob("*.swp"):
        ledger.write(str(path), int(path.read_text()))


def replace_builders(mode: FakeGpuMode) -> None:
    """Let every op builder load an op that computes nothing."""
    from deepspeed.ops.op_builder.builder import OpBuilder

    class Aio(NoOp):
        def aio_handle(self, *_: Any, **__: Any) -> AioHandle:
            return AioHandle(mode)

    loaded = {"async_io": Aio()}
    for builder in _with_subclasses(OpBuilder):
        builder.load = lambda self, verbose=True: loaded.get(self.name, NoOp())
        builder.is_compatible = lambda self, verbose=False: True


def _with_subclasses(builder: Any) -> Iterator[Any]:
    yield builder
    for derived in builder.__subclasses__():
        yield from _with_subclasses(derived)
