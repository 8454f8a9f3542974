"""A fake GPU for torch: a device type whose streams and events complete at once."""

import contextlib
from collections.abc import Iterator

import torch

NAME = "fakegpu"


class Stream:
    """A stream. Work on it completes at once, but the allocator keeps its blocks apart."""

    _count = 0

    def __init__(self, *_: object, **__: object) -> None:
        """Accept the arguments of `torch.cuda.Stream`."""
        Stream._count += 1
        self.number = Stream._count

    def synchronize(self, *_: object) -> None:
        """Return at once."""

    wait_stream = wait_event = synchronize

    def query(self) -> bool:
        """Return True: all work is complete."""
        return True

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Return a completed event."""
        return event or Event()


class Event:
    """A completed event."""

    def __init__(self, *_: object, **__: object) -> None:
        """Accept the arguments of `torch.cuda.Event`."""

    def synchronize(self, *_: object) -> None:
        """Return at once."""

    record = wait = synchronize

    def query(self) -> bool:
        """Return True: the event is complete."""
        return True

    def elapsed_time(self, _: "Event") -> float:
        """Return 0 ms."""
        return 0.0


DEFAULT_STREAM = Stream()
_streams = [DEFAULT_STREAM]


def current_stream() -> Stream:
    """Return the stream that allocations belong to."""
    return _streams[-1]


@contextlib.contextmanager
def on_stream(stream: Stream | None) -> Iterator[None]:
    """Allocate on another stream inside."""
    _streams.append(stream or DEFAULT_STREAM)
    try:
        yield
    finally:
        _streams.pop()


class _Backend:
    """The functions that torch calls on the module of a device type."""

    def is_initialized(self) -> bool:
        return True

    is_available = is_initialized

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def set_device(self, *_: object) -> None:
        pass

    manual_seed = manual_seed_all = set_rng_state = set_device

    def get_rng_state(self, _: object = None) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def _is_in_bad_fork(self) -> bool:
        return False

    @contextlib.contextmanager
    def device(self, _: object) -> Iterator[None]:
        yield


def register() -> None:
    """Register the device type with torch; once in a process."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
    # Autocast has no effect on this device: DeepSpeed casts the model itself.
    _libraries.append(torch.library.Library("_", "IMPL", "AutocastPrivateUse1"))
    _libraries[-1].fallback(torch.library.fallthrough_kernel)


_libraries: list[torch.library.Library] = []
"""Registrations, which end when a library is garbage-collected."""
