"""DeepSpeed's view of the GPU that is not there."""

from typing import Any

import torch
from deepspeed.accelerator import DeepSpeedAccelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

from zlaunch.estimate.rehearsal import device as fake
from zlaunch.estimate.rehearsal.fake_tensors import FakeGpuMode


class FakeGPU(CPU_Accelerator):  # type: ignore[misc]
    """An accelerator that behaves as CUDA does wherever memory depends on it.

    What it inherits from the CPU's is what has no effect on memory.
    """

    _torch_pins_host_memory = True
    pin_memory = DeepSpeedAccelerator.pin_memory

    def __init__(self, mode: FakeGpuMode, total_bytes: int, num_local: int) -> None:
        """Serve tensors of `mode`; `num_local` devices of `total_bytes` each are visible."""
        super().__init__()
        self._name = fake.NAME
        self._communication_backend_name = "fake"
        self._mode = mode
        self._total = total_bytes
        self._num_local = num_local

    def is_synchronized_device(self) -> bool:
        return False

    def use_host_timers(self) -> bool:
        return False

    def resolves_data_dependency(self) -> bool:
        return False

    def handles_memory_backpressure(self) -> bool:
        return False

    def device_name(self, device_index: int | None = None) -> str:
        return fake.NAME if device_index is None else f"{fake.NAME}:0"

    def device(self, device_index: int | None = None) -> torch.device:
        return torch.device(fake.NAME, 0)

    def set_device(self, device_index: int) -> None:
        pass

    def current_device(self) -> int:
        return 0

    def current_device_name(self) -> str:
        return f"{fake.NAME}:0"

    def device_count(self) -> int:
        return self._num_local

    def communication_backend_version(self) -> tuple[int, int, int]:
        return (2, 27, 7)

    def is_available(self) -> bool:
        return True

    def is_bf16_supported(self) -> bool:
        return True

    def is_fp16_supported(self) -> bool:
        return True

    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float, torch.half, torch.bfloat16]

    def is_triton_supported(self) -> bool:
        return False

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def set_rng_state(self, new_state: Any, device_index: int | None = None) -> None:
        pass

    @property
    def Stream(self) -> type[fake.Stream]:  # noqa: N802 - DeepSpeed's name
        return fake.Stream

    def stream(self, stream: Any) -> Any:
        return fake.on_stream(stream)

    def current_stream(self, device_index: int | None = None) -> fake.Stream:
        return fake.current_stream()

    def default_stream(self, device_index: int | None = None) -> fake.Stream:
        return fake.DEFAULT_STREAM

    @property
    def Event(self) -> type[fake.Event]:  # noqa: N802 - DeepSpeed's name
        return fake.Event

    def empty_cache(self) -> None:
        self._mode.ledger.empty_cache()

    def memory_allocated(self, device_index: int | None = None) -> int:
        return self._mode.ledger.gpu.allocated

    def memory_reserved(self, device_index: int | None = None) -> int:
        return self._mode.ledger.gpu.reserved

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return self._mode.ledger.gpu.peak_allocated

    def max_memory_reserved(self, device_index: int | None = None) -> int:
        return self._mode.ledger.gpu.peak_reserved

    memory_cached = memory_reserved
    max_memory_cached = max_memory_reserved

    def memory_stats(self, device_index: int | None = None) -> dict[str, int]:
        return {}

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        pass

    def total_memory(self, device_index: int | None = None) -> int:
        return self._total

    def available_memory(self, device_index: int | None = None) -> int:
        return self._total - self.memory_allocated()

    def range_push(self, msg: str, domain: Any = None, category: Any = None) -> None:
        pass

    def range_pop(self, domain: Any = None) -> None:
        pass

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._mode.locking():
            copy = torch.empty_like(tensor, device="cpu")
        return copy.copy_(tensor)

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: Any) -> torch.Tensor:
        with self._mode.locking():
            return tensor.new_empty(shape, device="cpu")

    def _torch_is_pinned(self, tensor: torch.Tensor) -> bool:
        return self._mode.is_pinned(tensor)

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return bool(tensor.device.type == fake.NAME)


def _typed(dtype: torch.dtype) -> property:
    """Make what `torch.cuda.FloatTensor` and its like are: from a size, or from values."""

    def make(*args: Any) -> torch.Tensor:
        if len(args) == 1 and isinstance(args[0], int):
            return torch.empty(args[0], dtype=dtype, device=fake.NAME)
        return torch.tensor(*args, dtype=dtype, device=fake.NAME)

    return property(lambda _: make)


for _name, _dtype in {
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "DoubleTensor": torch.double,
    "FloatTensor": torch.float,
    "HalfTensor": torch.half,
    "IntTensor": torch.int,
    "LongTensor": torch.long,
}.items():
    setattr(FakeGPU, _name, _typed(_dtype))
