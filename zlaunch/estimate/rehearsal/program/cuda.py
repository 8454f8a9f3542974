"""The fake GPU under the name that programs know: `cuda`."""

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from zlaunch.estimate.rehearsal import device as fake
from zlaunch.estimate.rehearsal.allocation_log import AllocationLog
from zlaunch.estimate.rehearsal.device import NAME

_RELEASE = "12.8"
_CAPABILITY = (9, 0)


def apply(log: AllocationLog, num_devices: int, gpu_bytes: int) -> None:
    """Let `torch.cuda` answer as with so many GPUs, and put what moves there on the fake one."""
    for name, answer in _answers(log, num_devices, gpu_bytes).items():
        setattr(torch.cuda, name, answer)
    for module in (torch.cuda, torch.cuda.random):
        for name in ("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state"):
            setattr(module, name, _always(None))
        module.set_rng_state_all = _always(None)
        module.get_rng_state = _each_time(torch.get_rng_state)
        module.get_rng_state_all = lambda: [torch.get_rng_state()]
    torch.version.cuda = _RELEASE
    _map_devices()


def _always(answer: object) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer


def _each_time(answer: Callable[[], Any]) -> Callable[..., Any]:
    """Answer anew in each call, whichever device is asked about, and however that is named."""
    return lambda *args, **kwargs: answer()


def _answers(log: AllocationLog, num_devices: int, gpu_bytes: int) -> dict[str, Any]:
    properties = SimpleNamespace(
        name="GPU",
        major=_CAPABILITY[0],
        minor=_CAPABILITY[1],
        total_memory=gpu_bytes,
        multi_processor_count=132,
    )
    constant: dict[str, object] = {
        "is_available": True,
        "is_initialized": True,
        "is_bf16_supported": True,
        "_is_in_bad_fork": False,
        "is_current_stream_capturing": False,
        "device_count": num_devices,
        "current_device": 0,
        "get_device_name": "GPU",
        "get_device_capability": _CAPABILITY,
        "get_device_properties": properties,
        "get_arch_list": ["sm_90"],
        "memory_summary": "",
        "default_stream": fake.DEFAULT_STREAM,
        **dict.fromkeys(("init", "_lazy_init", "set_device", "synchronize", "ipc_collect")),
        **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated", "set_stream")),
        "set_per_process_memory_fraction": None,
    }
    return {
        **{name: _always(answer) for name, answer in constant.items()},
        "device": _each_time(contextlib.nullcontext),
        **dict.fromkeys(("memory_allocated", "max_memory_allocated"), _each_time(lambda: log.gpu.allocated)),
        **dict.fromkeys(("memory_reserved", "max_memory_reserved"), _each_time(lambda: log.gpu.reserved)),
        "mem_get_info": _each_time(lambda: (gpu_bytes - log.gpu.reserved, gpu_bytes)),
        "memory_stats": _each_time(dict),
        "empty_cache": log.empty_cache,
        "current_stream": _each_time(fake.current_stream),
        "stream": fake.on_stream,
        "Stream": fake.Stream,
        "Event": fake.Event,
    }


def _map_devices() -> None:
    """Replace the device in calls that would compare it with that of a tensor."""
    tensor_to, module_to = torch.Tensor.to, torch.nn.Module.to

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return tensor_to(
            self, *map(_mapped, args), **{name: _mapped(value) for name, value in kwargs.items()}
        )

    def move(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        return module_to(
            self, *map(_mapped, args), **{name: _mapped(value) for name, value in kwargs.items()}
        )

    def to_gpu(self: Any, *_: object, **__: object) -> Any:
        return self.to(torch.device(NAME, 0))

    torch.Tensor.to, torch.nn.Module.to = to, move
    torch.Tensor.cuda = torch.nn.Module.cuda = to_gpu
    torch.Tensor.pin_memory = lambda self, *_: self
    FakeTensor.is_cuda = property(lambda self: self._fake_device.type == NAME)
    generator = torch.Generator

    class Generator(generator):  # type: ignore[misc, valid-type]
        def __new__(cls, device: Any = "cpu") -> Any:
            if torch.device(device).type in ("cuda", NAME):
                device = "cpu"
            return generator.__new__(cls, device)

    torch.Generator = Generator


def _mapped(value: Any) -> Any:
    """Return the fake GPU for `cuda`, however it is written; anything else as it is."""
    if isinstance(value, torch.device):
        is_gpu = value.type == "cuda"
    else:
        is_gpu = isinstance(value, str) and value.partition(":")[0] == "cuda"
    if is_gpu:
        return torch.device(NAME, 0)
    return value
