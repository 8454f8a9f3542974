"""Fake tensors for models, real ones for data: a program may look at its data, and computes with them."""

import contextlib
import math
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any, Final

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from zlaunch.estimate.rehearsal.allocation_log import Block
from zlaunch.estimate.rehearsal.device import NAME
from zlaunch.estimate.rehearsal.known_data import DataMode
from zlaunch.estimate.rehearsal.model import CannotTell
from zlaunch.estimate.rehearsal.program import values

aten = torch.ops.aten
_MODELING: Final = ("/deepspeed/", "/transformers/", "/peft/", "/accelerate/", "/torchao/")
"""Packages whose new tensors belong to a model or an engine."""
_CPU: Final = torch.device("cpu")
_NO_GPU: Final = (
    "it puts a tensor on `cuda`, but the job has no GPU; write `engine.device` or `accelerator.device` "
    "instead, or `zlaunch estimate SCRIPT --on GPUS` for GPUs"
)
_MOST_REAL_BYTES: Final = 1 << 20
"""A larger floating-point tensor that a program makes on the host is taken for a part of a model."""
_MOST_FILE_BYTES: Final = 1 << 30
"""A larger file is not read."""


class ProgramMode(DataMode):
    """Tensors on the host that are made of data stay real; parameters, and all tensors on a GPU, are fake."""

    reads_data = False
    """Whether the program is reading a batch: all that it makes on the host is data."""
    _peeks = False

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator on real data for real, and any other on fake tensors."""
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is not None and device.type == "cpu" and device.index is not None:
            device = _CPU  # which torch takes `cpu:0` for
            kwargs = {**kwargs, "device": device}
        if device is not None and device.type == "cuda":
            if self._keys_device.type == "cpu":
                raise CannotTell(_NO_GPU)
            kwargs = {**kwargs, "device": torch.device(NAME, 0)}
        elif not self._is_tracing and FakeTensor not in types and self._is_real(args, kwargs):
            out = func(*args, **kwargs)
            if not self._peeks:
                self._log_new(func, out, args)
            return out
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _is_real(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        device = kwargs.get("device")
        if device is not None and device.type != "cpu":
            return False
        given = [*_tensors_among(args), *_tensors_among(list(kwargs.values()))]
        if given:
            return not any(isinstance(tensor, FakeTensor) for tensor in given)
        if self.reads_data:
            return True
        most = _MOST_REAL_BYTES
        if torch._C._current_graph_task_id() != -1:  # it is a gradient, which the engine keeps
            most = 0
        return _nbytes(args, kwargs) <= most and not _is_modeling()

    def _log_new(self, func: OpOverload, out: Any, args: Sequence[Any]) -> None:
        """Log what an operator made of data; others, such as numpy, may have made its arguments."""
        if func is aten.lift_fresh.default:  # of `torch.tensor`, which has just made it
            self._log_tensors(out)
            return
        given = {tensor.untyped_storage()._cdata for tensor in _tensors_among(args)}
        for tensor in _tensors_among([out]):
            if tensor.untyped_storage()._cdata not in given:
                self._log_tensors(tensor)

    def note_selection(self) -> None:
        """Remember where it is."""
        values.note_selection()

    @contextlib.contextmanager
    def reading_data(self, *, peeks: bool = False) -> Iterator[None]:
        """Make real tensors inside; to peek at data that training would read later is not logged."""
        before = (self.reads_data, self._peeks)
        self.reads_data, self._peeks = True, peeks
        try:
            yield
        finally:
            self.reads_data, self._peeks = before

    def is_logged(self, tensor: torch.Tensor) -> bool:
        """Whether the memory of a tensor is counted."""
        return tensor.untyped_storage()._cdata in self._blocks

    def log_real(self, tensor: torch.Tensor) -> None:
        """Count the memory of a real tensor."""
        self._log_tensors(tensor)

    def mapped(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor that is a view of a file, which takes no memory."""
        with _disable_current_modes():
            meta = torch.empty(shape, dtype=dtype, device="meta")
        tensor = self._as_fake(meta, _CPU)
        storage = tensor.untyped_storage()
        key, block = storage._cdata, Block("pageable", "mapped file", storage.nbytes(), 0)
        self._blocks[key] = (block, weakref.ref(storage, partial(self._free, key)))
        return tensor

    def adopt(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a fake tensor in place of a real one that becomes a part of a model."""
        if isinstance(tensor, FakeTensor) or tensor.device.type != "cpu":
            return tensor
        with _disable_current_modes():
            meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        fake = self._as_fake(meta, _CPU)
        self.forget(tensor)
        self._log_storage(fake)
        return fake


def read_files(mode: ProgramMode) -> None:
    """Let `torch.load` read data, and log them; of large files, which are weights, it makes fake tensors."""
    load = torch.load

    def loaded(f: Any, *args: Any, **kwargs: Any) -> Any:
        is_path = isinstance(f, (str, os.PathLike))
        if is_path and os.path.exists(f) and os.path.getsize(f) > _MOST_FILE_BYTES:  # noqa: PTH110, PTH202
            return load(f, *args, **kwargs)
        with _disable_current_modes():
            return load(f, *args, **kwargs)

    torch.load = loaded
    reader = torch._C.PyTorchFileReader
    read = reader.get_storage_from_record

    def read_logged(self: Any, *args: Any) -> torch.Tensor:
        tensor: torch.Tensor = read(self, *args)
        mode._log_tensors(tensor)
        return tensor

    reader.get_storage_from_record = read_logged


def share_arrays(mode: ProgramMode) -> None:
    """Count no memory for tensors that are views of numpy's arrays."""
    for name in ("from_numpy", "as_tensor"):
        setattr(torch, name, _sharing(mode, getattr(torch, name)))


def _sharing(mode: ProgramMode, make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def made(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if type(data).__module__ != "numpy":
            return make(data, *args, **kwargs)
        with mode.reading_data(peeks=True):
            return make(data, *args, **kwargs)

    return made


def without_inference_tensors() -> None:
    """Let `torch.inference_mode` only turn gradients off: fake tensors cannot be inference tensors."""

    def inference_mode(mode: Any = True) -> Any:
        if callable(mode):
            return torch.no_grad()(mode)
        if mode:
            return torch.no_grad()
        return contextlib.nullcontext()

    torch.inference_mode = inference_mode


def keep_models_fake(mode: ProgramMode) -> None:
    """Replace the real tensors of which a program makes parameters and buffers."""
    make, register = torch.nn.Parameter.__new__, torch.nn.Module.register_buffer

    def parameter(cls: type, data: torch.Tensor | None = None, requires_grad: bool = True) -> torch.Tensor:
        if data is not None:
            data = mode.adopt(data)
        made: torch.Tensor = make(cls, data, requires_grad)
        return made

    def buffer(
        self: torch.nn.Module, name: str, tensor: torch.Tensor | None, persistent: bool = True
    ) -> None:
        if tensor is not None:
            tensor = mode.adopt(tensor)
        register(self, name, tensor, persistent)

    torch.nn.Parameter.__new__ = parameter
    torch.nn.Module.register_buffer = buffer


def _tensors_among(values: Sequence[Any]) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += [item for item in value if isinstance(item, torch.Tensor)]
    return tensors


def _nbytes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the size of what a function makes of a shape; 0 for integers, which are data."""
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    if not dtype.is_floating_point:
        return 0
    shape = next((value for value in args if isinstance(value, (list, tuple))), ())
    return math.prod(map(int, shape)) * int(dtype.itemsize)


def _is_modeling() -> bool:
    """Whether a package that makes models or engines asked for a tensor."""
    frame: FrameType | None = sys._getframe(3)
    while frame is not None:
        file = frame.f_code.co_filename
        if "/site-packages/torch/" not in file and not file.startswith("<"):
            return any(f"/site-packages{package}" in file for package in _MODELING)
        frame = frame.f_back
    return False
