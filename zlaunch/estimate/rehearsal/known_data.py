"""Data of fake tensors that are computed from batches: token ids, labels, masks, and the grids of images.

Programs and models decide by them, as by whether a mask has any padding.
"""

import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from zlaunch.estimate.rehearsal.fake_tensors import FakeGpuMode

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
_SELECTIONS: Final = (aten.nonzero.default, aten.masked_select.default)
_READERS: Final = (aten._local_scalar_dense.default, aten.is_nonzero.default)
_SIZED_BY_DATA: Final = (
    aten.repeat_interleave.Tensor,
    aten.unique_consecutive.default,
    aten._unique2.default,
    aten.bincount.default,
)
"""Operators whose results have as many elements as their data say."""
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


def is_known_to_fail(condition: torch.Tensor) -> bool:
    """Whether the data of a condition are known, and not all true."""
    data = known(condition)
    if data is None:
        return False
    with _disable_current_modes():
        return not data.all()


def keep(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
    """Remember the data of what an operator made of known ones, on the host."""
    if func.namespace == "c10d":
        _keep_exchanged(func, args)
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
        if not _is_repeated(func, args, kwargs):
            _forget(first)
        return
    made = _fake_tensors(out)
    most = max((tensor.numel() for tensor in made), default=0)
    if not made or func in _WITHOUT_DATA or (most > _MOST_ELEMENTS and not first.is_floating_point()):
        return
    if torch.Tag.nondeterministic_seeded in func.tags or (type(first) is not FakeTensor and _is_large(first)):
        return
    try:
        data = func(*map(_known_argument, args), **_on_host(kwargs))
    except (_Unknown, RuntimeError, IndexError, TypeError):  # what fails on the host stays unknown
        return
    if isinstance(data, torch.Tensor):
        data = [data]
    for tensor, value in zip(made, data, strict=True):
        tensor._known = value


def _is_repeated(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Write to the known data, too, whose views share memory as tensors do; return whether it is possible."""
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    if type(args[0]) is not FakeTensor or not func.__name__.partition(".")[0].endswith("_") or is_random:
        return False
    try:
        func(*map(_known_argument, args), **_on_host(kwargs))
    except (_Unknown, RuntimeError, IndexError, TypeError):
        return False
    return True


def _fake_tensors(out: Any) -> list[FakeTensor]:
    """Return the results of an operator, if all are fake tensors."""
    results = out if isinstance(out, (list, tuple)) else [out]
    if all(type(result) is FakeTensor for result in results):
        return list(results)
    return []


def _on_host(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if "device" not in kwargs:
        return dict(kwargs)
    return {**kwargs, "device": torch.device("cpu")}


def _keep_numbers(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
    """Remember positions and other integers, which are made of no tensors."""
    if type(out) is FakeTensor and not out.is_floating_point() and out.numel() <= _MOST_ELEMENTS:
        out._known = func(*args, **_on_host(kwargs))


def _keep_exchanged(func: OpOverload, args: Sequence[Any]) -> None:
    """Take what others bring to a gathering to be like this data, such as the lengths of their batches."""
    if not func.__name__.startswith(("allgather_.", "_allgather_base_")):
        _forget_all(args)
        return
    for outputs, own in zip(_listed(args[0]), _listed(args[1]), strict=True):
        for output in _listed(outputs):
            if type(output) is FakeTensor:
                _keep_gathered(output, known(own))


def _keep_gathered(output: FakeTensor, own: torch.Tensor | None) -> None:
    if own is None or own.is_floating_point() or output.numel() > _MOST_ELEMENTS or not own.numel():
        _forget(output)
        return
    data = own.reshape(-1).repeat(output.numel() // own.numel()).view(output.shape)
    if output._known is None:
        output._known = data
    else:
        output._known.copy_(data)  # views share its memory


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


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


class DataMode(FakeGpuMode):
    """Fake tensors, of which some have known data, by which a model may decide."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Read known data, and keep what is computed from them."""
        kwargs = kwargs or {}
        if func in _SELECTIONS and type(args[0]) is FakeTensor:
            return self._select(func, types, args)
        if func in _SIZED_BY_DATA and (data := _computed(func, args, kwargs)) is not None:
            return self._with_data(args[0], types, data)
        if func is aten._ctc_loss.default:
            return self._align(types, args[0], max(args[3]))
        if func is aten._ctc_loss_backward.default:
            return super().__torch_dispatch__(aten.empty_like.default, types, (args[1],), {})
        if self._is_tracing:
            return super().__torch_dispatch__(func, types, args, kwargs)
        if func in _READERS and (data := known(args[0])) is not None:
            return func(data)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        keep(func, args, kwargs, out)
        return out

    def _align(self, types: Any, log_probs: torch.Tensor, longest: int) -> tuple[Any, Any]:
        """Return the losses of CTC and its probabilities, for blanks before, between and after the labels."""
        frames, batch, _ = log_probs.shape
        sizes = [batch], [batch, frames, 2 * longest + 1]
        losses, alphas = (
            super(DataMode, self).__torch_dispatch__(aten.new_empty.default, types, (log_probs, size), {})
            for size in sizes
        )
        return losses, alphas

    def note_selection(self) -> None:
        """Called before something is selected by a mask whose data are unknown."""

    def _select(self, func: OpOverload, types: Any, args: Sequence[Any]) -> Any:
        """Select as much as a mask does, or as much as it can if its data are unknown."""
        if (data := _computed(func, args, {})) is not None:
            return self._with_data(args[0], types, data)
        source, mask = args[0], args[-1]
        count = max(source.numel(), mask.numel())
        if (known_mask := known(mask)) is None:
            self.note_selection()
        else:
            count = int(known_mask.count_nonzero()) * (count // max(1, mask.numel()))
        shape, options = [count, source.dim()], {"dtype": torch.long}
        if func is aten.masked_select.default:
            shape, options = [count], {}
        return super().__torch_dispatch__(aten.new_empty.default, types, (source, shape), options)

    def _with_data(self, source: torch.Tensor, types: Any, data: Any) -> Any:
        """Make fake tensors of these data, where the source is."""
        if isinstance(data, (list, tuple)):
            return tuple(self._with_data(source, types, item) for item in data)
        options = {"dtype": data.dtype}
        out = super().__torch_dispatch__(aten.new_empty.default, types, (source, list(data.shape)), options)
        out._known = data
        return out


def let_data_be_read() -> None:
    """Let known data be read by `tolist` of a fake tensor, and by `torch.tensor` of a list of them."""
    from deepspeed.runtime.zero import partition_parameters

    original, make, align = torch.Tensor.tolist, torch.tensor, torch.ctc_loss

    def to_list(self: FakeTensor) -> Any:
        if (data := known(self)) is not None:
            return data.tolist()
        return original(self)

    def tensor(data: Any, **kwargs: Any) -> torch.Tensor:
        if isinstance(data, list):
            data = [item.item() if type(item) is FakeTensor else item for item in data]
        return make(data, **kwargs)

    def ctc_loss(log_probs: torch.Tensor, targets: torch.Tensor, *lengths: Any) -> torch.Tensor:
        of_inputs, of_targets, *rest = lengths
        if type(of_inputs) is FakeTensor and (data := known(of_targets)) is not None:
            # Torch reads both from real tensors; the sizes depend on the longest targets alone.
            of_inputs, of_targets = [log_probs.shape[0]] * len(data), data.tolist()
        loss: torch.Tensor = align(log_probs, targets, of_inputs, of_targets, *rest)
        return loss

    FakeTensor.tolist, torch.tensor, torch.ctc_loss = to_list, tensor, ctc_loss
    partition_parameters._orig_torch_tensor = tensor  # which `zero.Init` puts back


def _computed(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        return func(*map(_known_argument, args), **_on_host(kwargs))
    except _Unknown:
        return None


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
