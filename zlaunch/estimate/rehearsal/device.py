"""A fake GPU for torch: a device type whose streams and events complete at once."""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import torch

NAME = "fakegpu"


class NoOp:
    """Something whose functions do nothing, such as to wait for work that is complete."""

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


class _Complete(NoOp):
    def query(self) -> bool:
        """Return True: all work is complete."""
        return True


class Stream(_Complete):
    """A stream. Work on it completes at once, but the allocator keeps its blocks apart."""

    _count = 0

    def __init__(self, *_: object, **__: object) -> None:
        """Accept the arguments of `torch.cuda.Stream`."""
        Stream._count += 1
        self.number = Stream._count

    def record_event(self, event: "Event | None" = None) -> "Event":
        """Return a completed event."""
        return event or Event()


class Event(_Complete):
    """A completed event."""

    def __init__(self, *_: object, **__: object) -> None:
        """Accept the arguments of `torch.cuda.Event`."""

    def elapsed_time(self, _: "Event") -> float:
        """Return some milliseconds: DeepSpeed's comms logger divides by them."""
        return 1.0


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


_BACKEND = SimpleNamespace(
    is_initialized=lambda: True,
    is_available=lambda: True,
    _is_in_bad_fork=lambda: False,
    current_device=lambda: 0,
    device_count=lambda: 1,
    device=contextlib.nullcontext,
    set_device=lambda *_: None,
    manual_seed=lambda *_: None,
    manual_seed_all=lambda *_: None,
    set_rng_state=lambda *_: None,
    get_rng_state=lambda _=None: torch.zeros(16, dtype=torch.uint8),
    get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
)
"""The functions that torch calls on the module of a device type."""


def register() -> None:
    """Register the device type with torch; once in a process."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME, backend_module=_BACKEND)
    # Autocast has no effect on this device: DeepSpeed casts the model itself.
    _libraries.append(torch.library.Library("_", "IMPL", "AutocastPrivateUse1"))
    _libraries[-1].fallback(torch.library.fallthrough_kernel)


_libraries: list[torch.library.Library] = []
"""Registrations, which end when a library is garbage-collected."""
