"""How the outputs of an operator come about: worked out once for each kind of call.

A training run repeats few operators on few shapes. What FakeTensorMode finds in 100 µs is kept as a
recipe: each output is an argument itself, a view of one, or new memory.
"""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten

_NEVER = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view)
_CHANGING = {
    aten.set_.source_Storage_storage_offset,
    aten.set_.source_Tensor,
    aten.lift_fresh.default,
    aten.as_strided.default,
}
"""Operators whose outputs do not follow from the description of their arguments."""


class Undescribable(Exception):
    """Something that cannot be described."""


@dataclass(frozen=True, slots=True)
class ArgumentOutput:
    """An output that is an argument."""

    place: int


@dataclass(frozen=True, slots=True)
class ConstantOutput:
    """An output that is no tensor."""

    value: int | float | None


@dataclass(frozen=True, slots=True)
class MemoryOutput:
    """An output in new memory, or a view of the argument at `source`."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    source: tuple[int, ...] = ()
    offset: int = 0
    """Elements behind the beginning of the source."""


Step = ArgumentOutput | ConstantOutput | MemoryOutput


@dataclass(frozen=True, slots=True)
class OpRecipe:
    """How a call ends; without steps it has to be worked out each time."""

    steps: tuple[Step, ...] | None
    many: bool
    flops: float


def describe(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Describe a call, so that the same description gives the same recipe; None if nothing can."""
    try:
        key = (id(func), *map(_described, args), *map(_described, kwargs.items()))
        hash(key)
    except (Undescribable, TypeError):
        return None
    return key


def _described(value: Any) -> Any:
    kind = type(value)
    if kind is FakeTensor:
        if value.constant is not None:
            raise Undescribable
        return (value.shape, value.stride(), value.dtype, value._fake_device)
    if kind is tuple or kind is list:
        return tuple(map(_described, value))
    if isinstance(value, torch.Tensor):
        raise Undescribable
    return (kind, value)


def write(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> OpRecipe:
    """Write down how a call ended."""
    many = isinstance(out, (tuple, list))
    count = flop_registry.get(func._overloadpacket)
    flops = 0.0 if count is None else float(count(*args, **kwargs, out_val=out))
    return OpRecipe(_steps(func, args, kwargs, out if many else [out]), many, flops)


def _steps(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], outs: Sequence[Any]
) -> tuple[Step, ...] | None:
    if func in _CHANGING or any(tag in func.tags for tag in _NEVER):
        return None
    if any(isinstance(value, torch.Tensor) for value in kwargs.values()):
        return None
    sources = _sources(args)
    try:
        return tuple(_step(one, args, sources) for one in outs)
    except Undescribable:
        return None


def _sources(args: Sequence[Any]) -> dict[int, tuple[int, ...]]:
    """Map the memory of each argument to its place among the arguments."""
    found: dict[int, tuple[int, ...]] = {}
    for place, value in enumerate(args):
        if isinstance(value, FakeTensor):
            found.setdefault(value.untyped_storage()._cdata, (place,))
        elif isinstance(value, (tuple, list)):
            for inner, item in enumerate(value):
                if isinstance(item, FakeTensor):
                    found.setdefault(item.untyped_storage()._cdata, (place, inner))
    return found


def is_first_and_work(out: Any, args: Sequence[Any]) -> bool:
    """Say whether a collective answered with its first argument and a piece of work that is done."""
    if type(out) is not tuple or len(out) != 2 or isinstance(out[1], (torch.Tensor, list)):
        return False
    first, given = out[0], args[0]
    if isinstance(first, torch.Tensor):
        return first is given
    return len(first) == len(given) and all(map(operator.is_, first, given))


def at(args: Sequence[Any], source: tuple[int, ...]) -> Any:
    """Take the argument at a place."""
    return args[source[0]] if len(source) == 1 else args[source[0]][source[1]]


def _step(one: Any, args: Sequence[Any], sources: Mapping[int, tuple[int, ...]]) -> Step:
    if one is None or type(one) in (int, float, bool):
        return ConstantOutput(one)
    for place, value in enumerate(args):
        if one is value:
            return ArgumentOutput(place)
    if type(one) is not FakeTensor or one.constant is not None or one.layout is not torch.strided:
        raise Undescribable
    shape, stride, storage = tuple(one.shape), one.stride(), one.untyped_storage()
    source = sources.get(storage._cdata)
    if source is not None:
        offset = one.storage_offset() - at(args, source).storage_offset()
        return MemoryOutput(shape, stride, one.dtype, one.fake_device, source, offset)
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if one.numel() else 0
    if storage.nbytes() != extent * one.element_size() or one.storage_offset():
        raise Undescribable
    return MemoryOutput(shape, stride, one.dtype, one.fake_device)
