"""Tensors without contents: torch's FakeTensorMode, sped up, with every allocation in the ledger."""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch._C import _DisableTorchDispatch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from zlaunch.estimate.rehearsal import op_cache
from zlaunch.estimate.rehearsal.allocation_log import AllocationLog, Block
from zlaunch.estimate.rehearsal.device import NAME, current_stream

aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
POOL_OF = {NAME: "gpu", "cpu": "pageable"}

_empty, _empty_strided, _make_subclass = torch.empty, torch.empty_strided, torch.Tensor._make_subclass
"""torch's own: within `zero.Init` DeepSpeed puts functions in their place that cast."""

Workspace = Callable[[Sequence[Any]], list[int]]


class FakeGpuMode(FakeTensorMode):  # type: ignore[misc]
    """Everything inside runs on tensors without contents."""

    avoid_device_init = True  # the device has no kernels to make a first tensor with

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and the guard against it costs more than an operator."""
        return False

    fast = True
    """Whether what was worked out once is kept; a test holds that it changes no allocation."""

    def __init__(
        self,
        ledger: AllocationLog,
        part_of: Callable[[Any], str],
        workspaces: Mapping[Any, Workspace],
        keys: torch.device,
    ) -> None:
        """Begin without tensors; `workspaces` are bytes that kernels take while they run.

        All tensors have the dispatch keys of one device, `keys`: see `share_keys`.
        """
        super().__init__(allow_non_fake_inputs=True)
        self.cache_enabled = not self.fast  # recipes keep what was worked out, by a key that is quicker made
        self.ledger = ledger
        self.flops = 0.0
        self._part_of = part_of
        self._keys = keys
        self._workspaces = {id(func): workspace for func, workspace in workspaces.items()}
        self._blocks: dict[int, tuple[Block, Any]] = {}
        self._recipes: dict[Any, op_cache.OpRecipe] = {}
        self._works: dict[int, Any] = {}
        self._inferring = False
        self._host_pool = "pageable"

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        """Answer an operator; half of all calls ask for a device."""
        if func is _DEVICE:
            return args[0]._fake_device
        if func is aten.detach.default and self.can_alias(args[0]):
            return self.alias(args[0])
        kwargs = kwargs or {}
        answer = _ANSWERS.get(id(func))
        if answer is not None and (found := answer(*args, **kwargs)) is not None:
            return found
        if self._inferring:
            return super().__torch_dispatch__(func, types, args, kwargs)
        return self._answer(func, types, args, kwargs)

    def _answer(self, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Answer what a rehearsal asks, not what FakeTensorMode asks on its way to an answer."""
        if func is aten.slice.Tensor and self.fast and type(args[0]) is FakeTensor:
            return self._slice(*args, **kwargs)
        if func.namespace == "c10d":
            return self._communicate(func, args, kwargs)
        workspace = self._workspaces.get(id(func))
        if workspace is None:
            return self._run(func, types, args, kwargs)
        stream = current_stream().number
        held = [self.ledger.take("gpu", "workspace", size, stream) for size in workspace(args)]
        out = self._run(func, types, args, kwargs)
        for block in held:
            self.ledger.give_back(block)
        return out

    def _run(self, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Follow the recipe of a call, or work it out."""
        key = op_cache.describe(func, args, kwargs) if self.fast else None
        recipe = None if key is None else self._recipes.get(key)
        if recipe is not None and recipe.steps is not None:
            self.flops += recipe.flops
            if not recipe.many:
                return self._follow(recipe.steps[0], args)
            return tuple([self._follow(step, args) for step in recipe.steps])
        out = self._infer(func, types, args, kwargs)
        self.see(out)
        if recipe is None:
            recipe = op_cache.write(func, args, kwargs, out)
            if key is not None:
                self._recipes[key] = recipe
        self.flops += recipe.flops
        return out

    def _communicate(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Answer a collective: nobody is there; what is sent and received exists, and the work is done."""
        work = self._works.get(id(func)) if self.fast else None
        if work is not None:
            return args[0], work
        with in_kernel_invocation_manager(self):
            out = func(*args, **kwargs)
        if op_cache.is_first_and_work(out, args):
            self._works[id(func)] = out[1]
        return out

    def _infer(self, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Ask FakeTensorMode, which finds some shapes by running operators that no GPU would run."""
        self._inferring = True
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self._inferring = False

    def _follow(self, step: Any, args: Sequence[Any]) -> Any:
        if type(step) is op_cache.ConstantOutput:
            return step.value
        if type(step) is op_cache.ArgumentOutput:
            return args[step.place]
        if step.source:
            base = op_cache.at(args, step.source)
            return self._view(base, step.shape, step.stride, base.storage_offset() + step.offset, step.dtype)
        bare = _empty_strided(step.shape, step.stride, dtype=step.dtype, device="meta")
        tensor = self._dress(bare, step.device)
        self._see_storage(tensor)
        return tensor

    def can_alias(self, base: Any) -> bool:
        """Say whether `alias` may stand for `detach`."""
        return self.fast and not self._inferring and type(base) is FakeTensor and base.constant is None

    def alias(self, base: Any) -> Any:
        """Make another tensor of the same memory and shape."""
        with _DisableTorchDispatch():
            return self._dress(base, base._fake_device)

    def _slice(
        self, base: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
    ) -> Any:
        """Cut a tensor, the one operator that has other arguments each time."""
        first, last, _ = slice(start, end).indices(base.shape[dim])
        shape, stride = list(base.shape), list(base.stride())
        offset = base.storage_offset() + first * stride[dim]
        shape[dim] = max(0, -(-(last - first) // step))
        stride[dim] *= step
        return self._view(base, shape, stride, offset, base.dtype)

    def _view(self, base: Any, shape: Any, stride: Any, offset: int, dtype: torch.dtype) -> Any:
        bare = _empty(0, dtype=dtype, device="meta")
        bare.set_(base.untyped_storage(), offset, shape, stride)
        return self._dress(bare, base._fake_device)

    def _dress(self, bare: torch.Tensor, device: torch.device) -> Any:
        """Make a tensor on the meta device one on `device`."""
        tensor = _make_subclass(
            FakeTensor, bare, False, dispatch_device=True, device_for_backend_keys=self._keys
        )
        tensor._fake_device = device
        tensor.fake_mode = self
        return tensor

    def see(self, found: Any) -> None:
        """Write down the memory of what is found, if it is new."""
        if isinstance(found, torch.Tensor):
            if found.layout is torch.strided:
                self._see_storage(found)
        elif isinstance(found, (tuple, list)):
            for item in found:
                self.see(item)

    def _see_storage(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
        known = self._blocks.get(key)
        if known is not None:
            if known[0].raw == nbytes:
                return
            self._forget(key)
        pool = POOL_OF.get(tensor.device.type)
        if pool == "pageable":
            pool = self._host_pool
        if nbytes == 0 or pool is None:
            return
        block = self.ledger.take(pool, self._part_of(tensor), nbytes, current_stream().number)
        self._blocks[key] = (block, weakref.ref(storage, partial(self._forget, key)))

    def _forget(self, key: int, _: Any = None) -> None:
        block, _ = self._blocks.pop(key)
        self.ledger.give_back(block)

    @contextlib.contextmanager
    def locking(self, pool: str = "pinned") -> Iterator[None]:
        """Take host memory from a page-locked pool meanwhile."""
        self._host_pool = pool
        try:
            yield
        finally:
            self._host_pool = "pageable"

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Say whether a tensor's memory is page-locked."""
        known = self._blocks.get(tensor.untyped_storage()._cdata)
        return known is not None and known[0].pool in ("pinned", "locked")


def _scalar(tensor: torch.Tensor) -> Any:
    """Answer what a number that was never computed is: false, one or zero."""
    if isinstance(tensor, FakeTensor) and tensor.constant is not None:
        return None
    if tensor.dtype is torch.bool:
        return False
    return 1.0 if tensor.dtype.is_floating_point else 0


_ANSWERS: dict[int, Callable[..., Any]] = {
    id(aten._local_scalar_dense.default): _scalar,
    id(aten.is_nonzero.default): lambda _: False,
    id(aten.equal.default): lambda *_: True,
}
"""By identity, because the hash of an operator is computed in Python."""


def share_keys(device: torch.device) -> None:
    """Give tensors of all devices the dispatch keys of one.

    torch lets `p.data = tensor` cross from CPU to CUDA, but not to a device that it does not know.
    """
    plain = torch.Tensor._make_subclass

    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("device_for_backend_keys") is not None:
            kwargs["device_for_backend_keys"] = device
        return plain(*args, **kwargs)

    torch.Tensor._make_subclass = staticmethod(make)


def spread_attributes() -> None:
    """Give FakeTensor at its class what it sets on each tensor, and let `.data` carry its device.

    A FakeTensor keeps its device in Python, where `p.data = tensor` does not copy it.
    """
    for name in ("constant", "real_tensor", "pytype", "dispatch_keys"):
        setattr(FakeTensor, name, None)
    for memo in ("nonzero", "item", "unique", "unique_consecutive", "nested_int"):
        for suffix in ("", "_vc", "_epoch"):
            setattr(FakeTensor, f"_{memo}_memo{suffix}", None)
    name_device()
    plain = torch.Tensor.data

    def take(self: FakeTensor) -> torch.Tensor:
        return self.fake_mode.alias(self) if self.fake_mode.can_alias(self) else plain.__get__(self)

    def assign(self: FakeTensor, value: torch.Tensor) -> None:
        plain.__set__(self, value)
        if isinstance(value, FakeTensor):
            self._fake_device = value._fake_device

    FakeTensor.data = property(take, assign)


def name_device() -> None:
    """Let a FakeTensor have its device in `_fake_device`; with torch 2.11 it is another name."""

    def assign(tensor: FakeTensor, device: torch.device) -> None:
        tensor._fake_device = device

    if not hasattr(FakeTensor, "fake_device"):
        FakeTensor.fake_device = property(attrgetter("_fake_device"), assign)
