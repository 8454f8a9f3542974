"""Data of fake tensors that are computed from batches: token ids, labels and masks.

Programs and models decide by them, as by whether a mask has any padding.
"""

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

aten = torch.ops.aten
_MOST_ELEMENTS: Final = 1 << 22
_WITHOUT_DATA: Final = (
    aten.empty_like.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
)
_MADE_OF_NUMBERS: Final = (
    aten.arange.default,
    aten.arange.start,
    aten.arange.start_step,
    aten.zeros.default,
    aten.ones.default,
    aten.full.default,
)
_CHANGED: dict[int, weakref.ref[torch.UntypedStorage]] = {}
"""Storages that an operator wrote to, until they are freed: what is known of them is out of date."""

FakeTensor._known = None


def known(tensor: Any) -> torch.Tensor | None:
    """Return the data of a tensor; None if they are unknown."""
    if type(tensor) is not FakeTensor:
        return tensor if isinstance(tensor, torch.Tensor) else None
    data: torch.Tensor | None = tensor._known
    if data is None or tensor.untyped_storage()._cdata in _CHANGED:
        return None
    return data


def keep(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
    """Remember the data of what an operator made of known ones, on the host."""
    if func.namespace == "c10d":
        _forget_all(args)
        return
    first = args[0] if args else None
    if func in _MADE_OF_NUMBERS:
        _keep_numbers(func, args, kwargs, out)
        return
    if isinstance(first, (list, tuple)) and first:
        first = first[0]
    if not isinstance(first, torch.Tensor) or known(first) is None:
        return
    if func._schema.is_mutable:
        _forget(first)
        return
    if type(out) is not FakeTensor or out.numel() > _MOST_ELEMENTS or func in _WITHOUT_DATA:
        return
    if torch.Tag.nondeterministic_seeded in func.tags or (type(first) is not FakeTensor and _is_large(first)):
        return
    try:
        out._known = func(*map(_known_argument, args), **_on_host(kwargs))
    except (_Unknown, RuntimeError, IndexError, TypeError):  # what fails on the host stays unknown
        return


def _on_host(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if "device" not in kwargs:
        return dict(kwargs)
    return {**kwargs, "device": torch.device("cpu")}


def _keep_numbers(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
    """Remember positions and other integers, which are made of no tensors."""
    if type(out) is FakeTensor and not out.is_floating_point() and out.numel() <= _MOST_ELEMENTS:
        out._known = func(*args, **_on_host(kwargs))


def _forget_all(args: Sequence[Any]) -> None:
    """Forget what a collective writes to: other ranks have other data."""
    for value in args:
        if isinstance(value, (list, tuple)):
            _forget_all(value)
        elif type(value) is FakeTensor:
            _forget(value)


def _forget(tensor: torch.Tensor) -> None:
    storage = tensor.untyped_storage()
    key = storage._cdata
    if key not in _CHANGED:
        _CHANGED[key] = weakref.ref(storage, lambda _: _CHANGED.pop(key, None))


@contextlib.contextmanager
def masks_of_data() -> Iterator[None]:
    """Let transformers look at masks as it does in training, whatever is patched inside."""
    try:
        from transformers import masking_utils
    except ImportError:  # before transformers 4.53
        yield
        return
    find_packed = masking_utils.find_packed_sequence_indices
    yield
    masking_utils.find_packed_sequence_indices = find_packed
    masking_utils.is_tracing = lambda *_: False


class _Unknown(Exception):
    """An argument whose data are unknown."""


def _known_argument(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_known_argument(item) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    data = known(value)
    if data is None:
        raise _Unknown
    return data


def _is_large(tensor: torch.Tensor) -> bool:
    """Whether a tensor of a batch is no index, label or mask."""
    return bool(tensor.is_floating_point() or tensor.numel() > _MOST_ELEMENTS)
