"""Fake tensors for models, real ones for data: a program may look at its data, and computes with them."""

import contextlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from zlaunch.estimate.rehearsal.device import NAME
from zlaunch.estimate.rehearsal.known_data import DataMode
from zlaunch.estimate.rehearsal.program import values

aten = torch.ops.aten
_MODELING: Final = ("/deepspeed/", "/transformers/", "/peft/", "/accelerate/", "/torchao/")
"""Packages whose new tensors belong to a model or an engine."""
_MOST_REAL_BYTES: Final = 1 << 20
"""A larger floating-point tensor that a program makes on the host is taken for a part of a model."""


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
        if device is not None and device.type == "cuda":
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
        given = [*_tensors(args), *_tensors(list(kwargs.values()))]
        if given:
            return not any(isinstance(tensor, FakeTensor) for tensor in given)
        if self.reads_data:
            return True
        return _nbytes(args, kwargs) <= _MOST_REAL_BYTES and not _is_modeling()

    def _log_new(self, func: OpOverload, out: Any, args: Sequence[Any]) -> None:
        """Log what an operator made of data; others, such as numpy, may have made its arguments."""
        if func is aten.lift_fresh.default:  # of `torch.tensor`, which has just made it
            self._log_tensors(out)
            return
        given = {tensor.untyped_storage()._cdata for tensor in _tensors(args)}
        for tensor in _tensors([out]):
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

    def adopt(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a fake tensor in place of a real one that becomes a part of a model."""
        if isinstance(tensor, FakeTensor) or tensor.device.type != "cpu":
            return tensor
        with _disable_current_modes():
            meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        fake = self._as_fake(meta, torch.device("cpu"))
        self.forget(tensor)
        self._log_storage(fake)
        return fake


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


def _tensors(values: Sequence[Any]) -> list[torch.Tensor]:
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
