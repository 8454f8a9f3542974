"""A GPU that is not there: a device type for torch, with streams and events that do nothing."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

NAME = "fakegpu"


class Stream:
    """A stream; work on it is done at once, but its allocations are its own."""

    _count = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        """Make a stream with the next number."""
        Stream._count += 1
        self.number = Stream._count

    def synchronize(self) -> None:
        """Wait for nothing."""

    def wait_stream(self, stream: "Stream") -> None:
        """Wait for nothing."""

    def wait_event(self, event: "Event") -> None:
        """Wait for nothing."""

    def query(self) -> bool:
        """Everything is done."""
        return True

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Return an event that has happened."""
        return event or Event()


class Event:
    """An event that has happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take whatever torch's own events take."""

    def record(self, *_: Any) -> None:
        """Happen."""

    def wait(self, *_: Any) -> None:
        """Wait for nothing."""

    def query(self) -> bool:
        """It has happened."""
        return True

    def synchronize(self) -> None:
        """Wait for nothing."""

    def elapsed_time(self, _: "Event") -> float:
        """No time passes; ms."""
        return 0.0


DEFAULT_STREAM = Stream()
_streams = [DEFAULT_STREAM]


def current_stream() -> Stream:
    """Say on which stream allocations are made now."""
    return _streams[-1]


@contextlib.contextmanager
def on_stream(stream: Stream | None) -> Iterator[None]:
    """Make allocations on another stream meanwhile."""
    _streams.append(stream or DEFAULT_STREAM)
    try:
        yield
    finally:
        _streams.pop()


class _Backend:
    """What torch asks the module of a device type."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def set_device(self, _: Any) -> None:
        pass

    def device_count(self) -> int:
        return 1

    def manual_seed(self, _: int) -> None:
        pass

    manual_seed_all = manual_seed

    def get_rng_state(self, _: Any = None) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def set_rng_state(self, *_: Any) -> None:
        pass

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def _is_in_bad_fork(self) -> bool:
        return False

    @contextlib.contextmanager
    def device(self, _: Any) -> Iterator[None]:
        yield


def register() -> None:
    """Make the device type known to torch; once in a process."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
    # On this device autocast changes nothing: DeepSpeed casts the model itself.
    _keep_alive.append(torch.library.Library("_", "IMPL", "AutocastPrivateUse1"))
    _keep_alive[-1].fallback(torch.library.fallthrough_kernel)


_keep_alive: list[torch.library.Library] = []
