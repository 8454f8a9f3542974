"""The fake GPU for DeepSpeed: its accelerator interface, and native ops that compute nothing."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from deepspeed.accelerator import DeepSpeedAccelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from deepspeed.ops.op_builder.builder import OpBuilder

from zlaunch.estimate.rehearsal import device as fake
from zlaunch.estimate.rehearsal.device import NAME, NoOp
from zlaunch.estimate.rehearsal.fake_tensors import FakeGpuMode

_DEVICE_BYTES = 1 << 50
"""Memory of the fake GPU: so much that DeepSpeed never has to release any."""


class FakeGPU(CPU_Accelerator):  # type: ignore[misc]
    """An accelerator that behaves like CUDA wherever memory depends on it.

    Everything else is inherited from the CPU accelerator.
    """

    Stream, Event = fake.Stream, fake.Event
    _torch_pins_host_memory = True

    def __init__(self, mode: FakeGpuMode, num_devices: int) -> None:
        """Show `num_devices` devices with the tensors of `mode`."""
        super().__init__()
        self._name = NAME
        self._communication_backend_name = "fake"
        self._mode = mode
        self._num_devices = num_devices

    def device_name(self, device_index: int | None = None) -> str:
        return NAME if device_index is None else f"{NAME}:0"

    def device(self, device_index: int | None = None) -> torch.device:
        return torch.device(NAME, 0)

    def device_count(self) -> int:
        return self._num_devices

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def stream(self, stream: fake.Stream | None) -> AbstractContextManager[None]:
        return fake.on_stream(stream)

    def current_stream(self, device_index: int | None = None) -> fake.Stream:
        return fake.current_stream()

    def empty_cache(self) -> None:
        self._mode.log.empty_cache()

    def memory_allocated(self, device_index: int | None = None) -> int:
        return self._mode.log.gpu.allocated

    def memory_reserved(self, device_index: int | None = None) -> int:
        return self._mode.log.gpu.reserved

    def pin_memory(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if hasattr(DeepSpeedAccelerator, "_torch_pin_memory"):
            pinned: torch.Tensor = DeepSpeedAccelerator.pin_memory(self, tensor, *args, **kwargs)
            return pinned
        return self._torch_pin_memory(tensor)  # before DeepSpeed 0.19

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        if hasattr(DeepSpeedAccelerator, "_torch_is_pinned"):
            return bool(DeepSpeedAccelerator.is_pinned(self, tensor))
        return self._torch_is_pinned(tensor)

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._mode.pinning():
            copy = torch.empty_like(tensor, device="cpu")
        return copy.copy_(tensor)

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        with self._mode.pinning():
            return tensor.new_empty(shape, device="cpu")

    def _torch_is_pinned(self, tensor: torch.Tensor) -> bool:
        return self._mode.is_pinned(tensor)

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return bool(tensor.device.type == NAME)


def _tensor_type(dtype: torch.dtype) -> property:
    def make(*args: object) -> torch.Tensor:
        if len(args) == 1 and isinstance(args[0], int):
            return torch.empty(args[0], dtype=dtype, device=NAME)
        return torch.tensor(*args, dtype=dtype, device=NAME)

    return property(lambda _: make)


def _always(answer: object) -> Callable[..., object]:
    return lambda *args, **kwargs: answer


_ANSWERS: dict[str, object] = {
    "is_synchronized_device": False,
    "is_fp16_supported": True,
    "supported_dtypes": [torch.float, torch.half, torch.bfloat16],
    "communication_backend_version": (2, 27, 7),
    "current_device": 0,
    "current_device_name": f"{NAME}:0",
    "default_stream": fake.DEFAULT_STREAM,
    "set_rng_state": None,
    "total_memory": _DEVICE_BYTES,
    "available_memory": _DEVICE_BYTES,
}
_TENSOR_TYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "DoubleTensor": torch.double,
    "FloatTensor": torch.float,
    "HalfTensor": torch.half,
    "IntTensor": torch.int,
    "LongTensor": torch.long,
}
for _name, _answer in _ANSWERS.items():
    setattr(FakeGPU, _name, _always(_answer))
for _name, _dtype in _TENSOR_TYPES.items():
    setattr(FakeGPU, _name, _tensor_type(_dtype))


class AioHandle(NoOp):
    """The handle of `async_io`: it logs page-locked memory and file sizes, and moves no data.

    Page-locked memory is free with the last reference to its tensor.
    """

    def __init__(self, mode: FakeGpuMode) -> None:
        self._mode = mode
        self._pending = 0

    def new_cpu_locked_tensor(self, numel: int, like: torch.Tensor) -> torch.Tensor:
        """Page-lock exactly `numel` elements."""
        with self._mode.pinning("locked"):
            return torch.empty(int(numel), dtype=like.dtype, device="cpu")

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return self._mode.is_pinned(tensor)

    def wait(self) -> int:
        """Return the number of operations completed since the last call."""
        done, self._pending = self._pending, 0
        return done

    def async_pwrite(self, tensor: torch.Tensor, path: str, offset: int = 0) -> int:
        """Start to write; return 0. The real file holds only its size, which survives a copy of it."""
        nbytes = offset + tensor.numel() * tensor.element_size()
        if self._mode.log.extend_file(path, nbytes):
            Path(path).write_text(str(nbytes))
        self._pending += 1
        return 0

    def async_pread(self, *_: object) -> int:
        """Start to read; return 0."""
        self._pending += 1
        return 0


class Quantizer(NoOp):
    """The op of ZeRO++, with the sizes of `csrc/quantization/pt_binding.cpp`.

    It stands for all other ops, too, because a CPU has one builder for those that it lacks.
    """

    Symmetric, Asymmetric = 0, 1

    def quantize(
        self, values: torch.Tensor, groups: int, bits: int, kind: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the values in so many bits, and the scales of groups of them."""
        scales = values.new_empty((groups, 1 + kind), dtype=torch.float32)
        shape = (*values.shape[:-1], values.shape[-1] * bits // 8)
        return values.new_empty(shape, dtype=torch.int8), scales

    def dequantize(
        self, quantized: torch.Tensor, scales: torch.Tensor, groups: int, bits: int, kind: int
    ) -> torch.Tensor:
        """Return fp16."""
        shape = (*quantized.shape[:-1], quantized.shape[-1] * 8 // bits)
        return quantized.new_empty(shape, dtype=torch.half)

    def swizzle_quant(
        self, values: torch.Tensor, groups: int, bits: int, kind: int, *_: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantize, in the order in which ranks exchange."""
        scales = values.new_empty((groups, 1 + kind), dtype=torch.float32)
        return values.new_empty(values.numel() * bits // 8, dtype=torch.int8), scales

    def quantized_reduction(
        self, values: torch.Tensor, scales: torch.Tensor, *settings: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add up what the ranks of a host have sent."""
        _, groups, _, kind, ranks = settings
        reduced = values.new_empty((groups, 1 + kind), dtype=torch.float32)
        return values.new_empty((*values.shape[:-1], values.shape[-1] // ranks)), reduced


def replace_builders(mode: FakeGpuMode) -> None:
    """Make every op builder of DeepSpeed load an op that computes nothing."""

    class AsyncIO(NoOp):
        def aio_handle(self, *_: object, **__: object) -> AioHandle:
            return AioHandle(mode)

    ops = {"async_io": AsyncIO()}
    for builder in _with_subclasses(OpBuilder):
        builder.load = lambda self, verbose=True: ops.get(self.name, Quantizer())
        builder.is_compatible = lambda self, verbose=False: True


def _with_subclasses(builder: type[OpBuilder]) -> Iterator[type[OpBuilder]]:
    yield builder
    for derived in builder.__subclasses__():
        yield from _with_subclasses(derived)
