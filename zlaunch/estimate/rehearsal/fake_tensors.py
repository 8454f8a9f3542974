"""Tensors without data: torch's FakeTensorMode, made faster, with every allocation logged."""

import contextlib
import itertools
import math
import weakref
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import Any

import torch
from torch._C import _DisableTorchDispatch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from zlaunch.estimate.rehearsal import op_results
from zlaunch.estimate.rehearsal.allocation_log import AllocationLog, Block
from zlaunch.estimate.rehearsal.device import NAME, current_stream
from zlaunch.estimate.rehearsal.traffic import TrafficCounter
from zlaunch.frozen import dataclass

aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
_DETACH, _EMPTY = aten.detach.default, aten.empty.memory_format
_SLICE, _VIEW = aten.slice.Tensor, aten.view.default
_MOST_ZEROS = 1 << 20
_WITH_COLLECTIVES = ("c10d", "deepspeed")
"""Namespaces of operators that exchange data with other ranks."""
_POOLS = {NAME: "gpu", "cpu": "pageable"}
_LEAST_MAPPED = 32 << 20
"""Bytes from which on glibc maps each block by itself: a smaller one may be where another was written."""

# torch's own functions: inside `zero.Init`, DeepSpeed replaces them by functions that cast.
_empty, _empty_strided, _make_subclass = torch.empty, torch.empty_strided, torch.Tensor._make_subclass

Workspace = Callable[[Sequence[Any]], list[int]]
"""Arguments of an operator → sizes of what its kernel allocates while it runs, in bytes."""


@dataclass(frozen=True, slots=True)
class KernelMemory:
    """What kernels of a GPU allocate by themselves, which a trace of operators does not show."""

    workspaces: Mapping[OpOverload, Workspace]
    of_cublas: Collection[OpOverload]
    """Operators that run in cuBLAS."""
    cublas_bytes: int
    """What torch allocates for each handle of cuBLAS and stream, once; bytes."""


class FakeGpuMode(FakeTensorMode):  # type: ignore[misc]
    """Run everything inside on fake tensors, and log what real ones would allocate."""

    avoid_device_init = True  # the fake device has no kernel to create a first tensor with

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Skip the check for compilation, which takes longer than an operator."""
        return False

    fast = True
    """Whether results of operators are recorded and replayed. A test compares both ways."""

    def __init__(
        self,
        log: AllocationLog,
        category_of: Callable[[torch.Tensor], str],
        kernels: KernelMemory,
        keys_device: torch.device,
    ) -> None:
        """Log to `log`; all tensors get the dispatch keys of `keys_device` (see `share_dispatch_keys`)."""
        super().__init__(allow_non_fake_inputs=True)
        self.cache_enabled = not self.fast  # `op_results` has keys that are faster to compute
        self.log = log
        self.flops = 0.0
        self._category_of = category_of
        self._keys_device = keys_device
        self._workspaces = {id(func): workspace for func, workspace in kernels.workspaces.items()}
        self._uses_cublas = {id(func) for func in kernels.of_cublas}
        self._special = {*self._workspaces, *self._uses_cublas, id(_SLICE), id(_VIEW)}
        self._plain: set[int] = set()
        """Operators, by identity, that are only replayed or traced."""
        self._cublas_bytes = kernels.cublas_bytes
        self._handles: set[tuple[bool, int]] = set()
        self._blocks: dict[int, tuple[Block, weakref.ref[torch.UntypedStorage]]] = {}
        self._results: dict[Hashable, op_results.OpResult] = {}
        self._works: dict[int, torch.distributed.Work] = {}
        self._is_tracing = False
        self._host_pool = "pageable"
        self._is_empty = False
        """Whether `aten.empty` makes the next storage that is logged, so that nothing has written it."""
        self._untouched: dict[int, Block] = {}
        """Storage, by identity → its block, of those of which something was not written yet."""
        self.traffic = TrafficCounter()
        self.genuine_error: Exception | None = None
        """The last error of an operator that real tensors raise, too."""

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator; half of all calls ask for a tensor's device."""
        if func is _DEVICE:
            return args[0]._fake_device
        if func is _DETACH and self.can_alias(args[0]):
            return self.alias(args[0])
        kwargs = kwargs or {}
        number = id(func)
        constant = _CONSTANT_RESULTS.get(number)
        if constant is not None and (result := constant(*args, **kwargs)) is not None:
            return result
        if self._is_tracing:
            return super().__torch_dispatch__(func, types, args, kwargs)
        if number in self._plain and not self._untouched:
            return self._replay_or_trace(func, types, args, kwargs)
        return self._run(func, types, args, kwargs)

    def _run(self, func: OpOverload, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator that was called by the job, not by FakeTensorMode while it traces."""
        if self.fast and func is _SLICE and type(args[0]) is FakeTensor:
            return self._slice(*args, **kwargs)
        if self.fast and func is _VIEW and (view := self._view_of_whole(*args)) is not None:
            return view
        if self._untouched:
            self._touch(func, args, kwargs)
        namespace = func.namespace
        if namespace in _WITH_COLLECTIVES:
            self.traffic.note(func, args)
        if namespace == "c10d":
            return self._run_collective(func, args, kwargs)
        number = id(func)
        is_on_gpu = number in self._special and args[0].device.type == NAME
        if is_on_gpu and number in self._uses_cublas:
            self._create_handle()
        workspace = self._workspaces.get(number)
        if workspace is None or not is_on_gpu:
            if namespace not in _WITH_COLLECTIVES and number not in self._special:
                self._plain.add(number)
            return self._replay_or_trace(func, types, args, kwargs)
        stream = current_stream().number
        blocks = [self.log.allocate("gpu", "workspace", size, stream) for size in workspace(args)]
        out = self._replay_or_trace(func, types, args, kwargs)
        for block in blocks:
            self.log.free(block)
        return out

    def _create_handle(self) -> None:
        """Allocate the workspace of a new handle: the forward pass has one, and autograd's thread another."""
        in_backward, stream = torch._C._current_graph_task_id() != -1, current_stream().number
        if (in_backward, stream) not in self._handles:
            self._handles.add((in_backward, stream))
            self.log.allocate("gpu", "workspace", self._cublas_bytes, stream)

    def _replay_or_trace(
        self, func: OpOverload, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        key = result = None
        self._is_empty = func is _EMPTY
        if self.fast:
            key = op_results.call_key(func, args, kwargs)
        if key is not None:
            try:
                result = self._results.get(key)
            except TypeError:  # an argument cannot be hashed
                key = None
        if result is not None and (outputs := result.outputs) is not None:
            self.flops += result.flops
            if not result.is_sequence:
                return self._replay(outputs[0], args)
            return tuple([self._replay(output, args) for output in outputs])
        out = self._trace(func, types, args, kwargs)
        self._log_tensors(out)
        if result is None:
            result = op_results.record(func, args, kwargs, out)
            if key is not None:
                self._results[key] = result
        self.flops += result.flops
        return out

    def _run_collective(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a collective of the fake process group: it allocates nothing and completes at once."""
        if self.fast and id(func) in self._works:
            return args[0], self._works[id(func)]
        with in_kernel_invocation_manager(self):
            out = func(*args, **kwargs)
        if op_results.is_completed_in_place(out, args):
            self._works[id(func)] = out[1]
        return out

    def _trace(self, func: OpOverload, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Let FakeTensorMode find the result; the operators that it runs for this are not logged."""
        self._is_tracing = True
        try:
            if (together := ONE_TYPE.get(id(func))) is not None:
                check_types(func, args, kwargs, together)
            return super().__torch_dispatch__(func, types, args, kwargs)
        except Exception as error:
            if id(func) in ONE_TYPE or type(error) is _error_on_zeros(func, args, kwargs):
                self.genuine_error = error
            raise
        finally:
            self._is_tracing = False

    def _replay(self, output: op_results.Output, args: Sequence[Any]) -> Any:
        if type(output) is not op_results.TensorOutput:
            return output(args)
        if output.base:
            base = op_results.argument_at(args, output.base)
            offset = base.storage_offset() + output.offset
            return self._view(base, output.shape, output.stride, offset, output.dtype)
        meta = _empty_strided(output.shape, output.stride, dtype=output.dtype, device="meta")
        tensor = self._as_fake(meta, output.device)
        self._log_made(tensor, output.device)
        return tensor

    def can_alias(self, base: torch.Tensor) -> bool:
        """Whether `alias` may replace `detach`."""
        return self.fast and not self._is_tracing and type(base) is FakeTensor and base.constant is None

    def alias(self, base: FakeTensor) -> FakeTensor:
        """Return a new tensor with the same memory and shape."""
        with _DisableTorchDispatch():
            return self._as_fake(base, base._fake_device)

    def _slice(
        self, base: FakeTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
    ) -> FakeTensor:
        """Compute `aten.slice`, whose arguments differ in nearly every call."""
        first, last, _ = slice(start, end).indices(base.shape[dim])
        shape, stride = list(base.shape), list(base.stride())
        offset = base.storage_offset() + first * stride[dim]
        shape[dim] = max(0, -(-(last - first) // step))
        stride[dim] *= step
        return self._view(base, shape, stride, offset, base.dtype)

    def _view_of_whole(self, base: torch.Tensor, size: Sequence[int]) -> FakeTensor | None:
        """Compute `aten.view` of a contiguous tensor, a fifth of all operators; None for any other."""
        if type(base) is not FakeTensor or base.constant is not None:
            return None
        shape = inferred(tuple(size), base.numel())
        if not shape or base.stride() != contiguous(tuple(base.shape)):
            return None
        return self._view(base, shape, contiguous(shape), base.storage_offset(), base.dtype)

    def _view(
        self,
        base: FakeTensor,
        shape: Sequence[int],
        stride: Sequence[int],
        offset: int,
        dtype: torch.dtype,
    ) -> FakeTensor:
        meta = _empty(0, dtype=dtype, device="meta")
        meta.set_(base.untyped_storage(), offset, shape, stride)
        return self._as_fake(meta, base._fake_device)

    def _as_fake(self, meta: torch.Tensor, device: torch.device) -> FakeTensor:
        tensor = _make_subclass(
            FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=self._keys_device
        )
        tensor._fake_device = device
        tensor.fake_mode = self
        return tensor

    def _log_tensors(self, out: object) -> None:
        if isinstance(out, torch.Tensor):
            if out.layout is torch.strided:
                self._log_storage(out)
        elif isinstance(out, (tuple, list)):
            for item in out:
                self._log_tensors(item)

    def _log_storage(self, tensor: torch.Tensor) -> None:
        """Log the storage of a tensor if it is new or was resized."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._blocks.get(key)
        if known is not None:
            if known[0].requested == storage.nbytes():
                return
            self._free(key)
        self._log_made(tensor, tensor.device)

    def _log_made(self, tensor: torch.Tensor, device: torch.device) -> None:
        """Log the storage of a tensor that was just made."""
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
        pool = _POOLS.get(device.type)
        if pool == "pageable":
            pool = self._host_pool
        if nbytes == 0 or pool is None:
            return
        category, is_empty = self._category_of(tensor), self._is_empty
        self._is_empty = False
        if category == "buckets" and pool == "pageable" and is_empty and nbytes >= _LEAST_MAPPED:
            block = self._untouched[key] = self.log.allocate_untouched(pool, category, nbytes)
        else:
            block = self.log.allocate(pool, category, nbytes, current_stream().number)
        self._blocks[key] = (block, weakref.ref(storage, partial(self._free, key)))

    def forget(self, tensor: torch.Tensor) -> None:
        """Log that the memory of a tensor is free, whatever still refers to it."""
        key = tensor.untyped_storage()._cdata
        if key in self._blocks:
            self._free(key)

    def record_stream(self, tensor: torch.Tensor, stream: int) -> None:
        """Log that a stream works on a tensor."""
        known = self._blocks.get(tensor.untyped_storage()._cdata)
        if known is not None and known[0].pool == "gpu":
            self.log.gpu.record_stream(known[0].address, stream)

    def _free(self, key: int, _: object = None) -> None:
        block, _ = self._blocks.pop(key)
        self._untouched.pop(key, None)
        self.log.free(block)

    def _touch(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Log what an operator writes of untouched blocks: their beginnings, as ZeRO fills its buckets."""
        if func.namespace == "aten" and not func._schema.is_mutable:
            return
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                block = self._untouched.get(tensor.untyped_storage()._cdata)
                if block is not None and tensor.numel():
                    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
                    end = tensor.storage_offset() + last + 1
                    self.log.touch(block, end * tensor.element_size())

    @contextlib.contextmanager
    def pinning(self, pool: str = "pinned") -> Iterator[None]:
        """Allocate host tensors in a page-locked pool inside."""
        self._host_pool = pool
        try:
            yield
        finally:
            self._host_pool = "pageable"

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's memory is page-locked."""
        known = self._blocks.get(tensor.untyped_storage()._cdata)
        return known is not None and known[0].pool in ("pinned", "locked")


@cache
def inferred(shape: tuple[int, ...], numel: int) -> tuple[int, ...]:
    """Replace a -1 in a shape; empty if it has not so many elements, or has no dimensions or no element."""
    if shape.count(-1) == 1 and (rest := -math.prod(shape)) > 0:
        place = shape.index(-1)
        shape = (*shape[:place], numel // rest, *shape[place + 1 :])
    if not shape or min(shape) < 1 or math.prod(shape) != numel:
        return ()
    return shape


@cache
def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


def _error_on_zeros(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> type[Exception] | None:
    """Return the type of the error that an operator raises on zeros, after it failed on fake tensors."""
    tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    if sum(tensor.numel() for tensor in tensors) > _MOST_ZEROS:
        return None

    def with_zeros(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return _empty(value.shape, dtype=value.dtype, device="cpu").zero_()
        if isinstance(value, torch.device):
            return torch.device("cpu")
        return value

    with _disable_current_modes():
        real_args, real_kwargs = tree_map(with_zeros, (tuple(args), dict(kwargs)))
        try:
            func(*real_args, **real_kwargs)
        except Exception as error:  # noqa: BLE001 - its type is what is asked
            return type(error)
    return None


ONE_TYPE: dict[int, tuple[int, ...]] = {
    id(aten.mm.default): (0, 1),
    id(aten.mv.default): (0, 1),
    id(aten.addmm.default): (0, 1, 2),
    id(aten.addmv.default): (0, 1, 2),
    id(aten.convolution.default): (0, 1, 2),
    id(aten.nll_loss_forward.default): (0, 2),
    id(aten.nll_loss2d_forward.default): (0, 2),
    id(aten._embedding_bag.default): (0, 6),
    id(aten._embedding_bag_forward_only.default): (0, 6),
    id(aten.index_put.default): (0, 2),
    id(aten.index_put_.default): (0, 2),
    id(aten.index_add.default): (0, 3),
    id(aten.index_add_.default): (0, 3),
    id(aten.native_layer_norm.default): (0, 2),
    id(aten.native_group_norm.default): (0, 1),
}
"""Operators, by identity → arguments of one type; fake tensors may differ where real ones may not."""


_SMALLEST_NORMS: dict[int, Callable[[Sequence[Any]], tuple[Any, ...]]] = {
    id(aten.native_layer_norm.default): lambda args: (args[0], [1] * len(args[1]), *args[2:]),
    id(aten.native_group_norm.default): lambda args: (*args[:3], 1, 1, 1, 1, args[-1]),
}
"""Norms, by identity → their arguments for tensors of one element."""
_NAMES_OF_TYPES = {torch.float32: "Float", torch.bfloat16: "BFloat16", torch.float16: "Half"}


def check_types(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], together: Sequence[int]
) -> None:
    """Raise what an operator raises for real tensors of these types, unless autocast converts them."""
    given = [args[place] for place in together if place < len(args)]
    types = {tensor.dtype for tensor in given if isinstance(tensor, torch.Tensor)}
    devices = ("cpu", "cuda", torch._C._get_privateuse1_backend_name())
    if len(types) < 2 or any(map(torch.is_autocast_enabled, devices)):
        return

    if id(func) in _SMALLEST_NORMS and given[0].device.type == NAME:
        # The kernels of CUDA convert no weights; those of the CPU convert some.
        wanted, found = (_NAMES_OF_TYPES.get(tensor.dtype, tensor.dtype) for tensor in given)
        raise RuntimeError(f"expected scalar type {wanted} but found {found}")

    def smallest(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return _empty([1] * value.dim(), dtype=value.dtype, device="cpu").zero_()
        return value

    with _disable_current_modes():
        small: Any = tree_map(smallest, tuple(args))
        small = _SMALLEST_NORMS.get(id(func), tuple)(small)
        func(*small, **tree_map(smallest, dict(kwargs)))


def _item(tensor: torch.Tensor) -> float | None:
    """Return a value for `tensor.item()` of a tensor without data: False, 1.0 or 0."""
    if isinstance(tensor, FakeTensor) and tensor.constant is not None:
        return None
    if tensor.dtype is torch.bool:
        return False
    if tensor.dtype.is_floating_point:
        return 1.0
    return 0


_CONSTANT_RESULTS: dict[int, Callable[..., object]] = {
    id(aten._local_scalar_dense.default): _item,
    id(aten.is_nonzero.default): lambda _: False,
    id(aten.equal.default): lambda *_: True,
}
"""Operators that read data, by identity: hashing an operator is slow. None as a result means: trace it."""


def share_dispatch_keys(device: torch.device) -> None:
    """Give the tensors of all devices the dispatch keys of one device.

    torch allows `p.data = tensor` between CPU and CUDA, but not between CPU and a custom device.
    """
    original = torch.Tensor._make_subclass

    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("device_for_backend_keys") is not None:
            kwargs["device_for_backend_keys"] = device
        return original(*args, **kwargs)

    torch.Tensor._make_subclass = staticmethod(make)


def patch_fake_tensor() -> None:
    """Move constant attributes of FakeTensor to the class, and let `p.data = tensor` copy all of it.

    A FakeTensor has its device in a Python attribute, which torch's own setter does not copy.
    """
    for name in ("constant", "real_tensor", "pytype", "dispatch_keys"):
        setattr(FakeTensor, name, None)
    for memo in ("nonzero", "item", "unique", "unique_consecutive", "nested_int"):
        for suffix in ("", "_vc", "_epoch"):
            setattr(FakeTensor, f"_{memo}_memo{suffix}", None)
    define_fake_device()
    FakeTensor.__hash__ = _number_of
    original = torch.Tensor.data

    def get(self: FakeTensor) -> torch.Tensor:
        if self.fake_mode.can_alias(self):
            return self.fake_mode.alias(self)
        return original.__get__(self)

    def assign(self: FakeTensor, value: torch.Tensor) -> None:
        original.__set__(self, value)
        if isinstance(value, FakeTensor):
            self._fake_device = value._fake_device
            self.constant = value.constant

    FakeTensor.data = property(get, assign)


_numbers = itertools.count()


def _number_of(self: FakeTensor) -> int:
    """Return the hash of a tensor: its number, so that sets of parameters have one order in every process.

    DeepSpeed gathers the parameters of a set one by one, and torch's own hash is an address. The id tells a
    copy, which has copied the attribute, from its original.
    """
    known: tuple[int, int] | None = self.__dict__.get("_number")
    if known is None or known[0] != id(self):
        known = self._number = (id(self), next(_numbers))
    return known[1]


def define_fake_device() -> None:
    """Make `fake_device`, where torch 2.11 stores the device of a FakeTensor, an alias of `_fake_device`."""

    def assign(tensor: FakeTensor, device: torch.device) -> None:
        tensor._fake_device = device

    if not hasattr(FakeTensor, "fake_device"):
        FakeTensor.fake_device = property(attrgetter("_fake_device"), assign)
