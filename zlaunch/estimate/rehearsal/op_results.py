"""Recorded results of operators, so that a call with known shapes need not be traced again.

A training run repeats few operators on few shapes. FakeTensorMode needs 100 µs for each call; a recorded
result says for each output whether it is an argument, a view of one, or new memory.
"""

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, final

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.flop_counter import flop_registry

from zlaunch.frozen import dataclass

aten = torch.ops.aten

_UNPREDICTABLE_TAGS = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
)
_UNPREDICTABLE_OPS = {
    aten.set_.source_Storage_storage_offset,
    aten.set_.source_Tensor,
    aten.lift_fresh.default,
    aten.as_strided.default,
}
"""Operators whose outputs do not follow from the shapes of their arguments."""

Index = tuple[int, ...]
"""Position of an argument, or of an item in a list argument: `(position,)` or `(position, item)`."""


class NotRecordable(Exception):
    """An argument or an output that a record cannot describe."""


@final
@dataclass(frozen=True, slots=True)
class TensorOutput:
    """A tensor in new memory, or a view of the argument at `base`."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    base: Index = ()
    offset: int = 0
    """Elements after the storage offset of the base."""


Output = TensorOutput | Callable[[Sequence[Any]], Any]
"""A tensor to make; or a function that selects an argument, or returns what is not a tensor."""


@dataclass(frozen=True, slots=True)
class OpResult:
    """The recorded result of a call; without outputs, the call must be traced each time."""

    outputs: tuple[Output, ...] | None
    is_sequence: bool
    flops: float


def call_key(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> Hashable | None:
    """Return a key that is equal for calls with equal results; None if there is none."""
    try:
        key = (
            id(func),
            torch.get_default_dtype(),
            *map(_argument_key, args),
            *map(_argument_key, kwargs.items()),
        )
        hash(key)
    except (NotRecordable, TypeError):
        return None
    return key


def _argument_key(value: Any) -> Hashable:
    kind = type(value)
    if kind is FakeTensor:
        if value.constant is not None:
            raise NotRecordable
        return (value.shape, value.stride(), value.dtype, value._fake_device)
    if kind is tuple or kind is list:
        return tuple(map(_argument_key, value))
    if isinstance(value, torch.Tensor):
        raise NotRecordable
    return (kind, value)


def record(func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object], out: object) -> OpResult:
    """Record the result of a call and its floating-point operations (`torch.utils.flop_counter`)."""
    flops = 0.0
    count = flop_registry.get(func._overloadpacket)
    if count is not None:
        flops = float(count(*args, **kwargs, out_val=out))
    if isinstance(out, (tuple, list)):
        return OpResult(_outputs(func, args, kwargs, out), True, flops)
    return OpResult(_outputs(func, args, kwargs, [out]), False, flops)


def _outputs(
    func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object], outs: Sequence[object]
) -> tuple[Output, ...] | None:
    if func in _UNPREDICTABLE_OPS or any(tag in func.tags for tag in _UNPREDICTABLE_TAGS):
        return None
    if any(isinstance(value, torch.Tensor) for value in kwargs.values()):
        return None
    storages = _argument_storages(args)
    try:
        return tuple(_output(out, args, storages) for out in outs)
    except NotRecordable:
        return None


def _argument_storages(args: Sequence[object]) -> dict[int, Index]:
    indices: dict[int, Index] = {}
    for position, value in enumerate(args):
        if isinstance(value, FakeTensor):
            indices.setdefault(value.untyped_storage()._cdata, (position,))
        elif isinstance(value, (tuple, list)):
            for inner, item in enumerate(value):
                if isinstance(item, FakeTensor):
                    indices.setdefault(item.untyped_storage()._cdata, (position, inner))
    return indices


def argument_at(args: Sequence[torch.Tensor], index: Index) -> torch.Tensor:
    """Return the argument at an index."""
    if len(index) == 1:
        return args[index[0]]
    return args[index[0]][index[1]]


def _output(out: Any, args: Sequence[object], storages: Mapping[int, Index]) -> Output:
    if out is None or type(out) in (int, float, bool):
        return lambda _: out
    for position, value in enumerate(args):
        if out is value:
            return operator.itemgetter(position)
    if type(out) is not FakeTensor or out.constant is not None or out.layout is not torch.strided:
        raise NotRecordable
    shape, stride, storage = tuple(out.shape), out.stride(), out.untyped_storage()
    base = storages.get(storage._cdata)
    if base is not None:
        offset = out.storage_offset() - argument_at(args, base).storage_offset()
        return TensorOutput(shape, stride, out.dtype, out.fake_device, base, offset)
    extent = 0
    if out.numel():
        extent = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    if storage.nbytes() != extent * out.element_size() or out.storage_offset():
        raise NotRecordable
    return TensorOutput(shape, stride, out.dtype, out.fake_device)


def is_completed_in_place(out: Any, args: Sequence[Any]) -> bool:
    """Whether a collective returned its first argument and a completed `Work`."""
    if type(out) is not tuple or len(out) != 2 or isinstance(out[1], (torch.Tensor, list)):
        return False
    first, given = out[0], args[0]
    if isinstance(first, torch.Tensor):
        return first is given
    return len(first) == len(given) and all(map(operator.is_, first, given))
