"""A copy of a module that DeepSpeed does not touch: what it computes is plain torch's."""

import contextlib
import copy
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields, is_dataclass
from typing import Any, Final, cast

import deepspeed
import torch
from deepspeed.runtime.zero.partition_parameters import ZeroParamStatus

from zlaunch.estimate.rehearsal.model import CannotTell
from zlaunch.estimate.rehearsal.program.batches import copied
from zlaunch.frozen import dataclass
from zlaunch.parity.program.measured import Tensors

_MOVED: Final = 8
"""One in so many weights is moved to a number next to it, where plain torch is to round otherwise.

The root mean square of the change is that of rounding each weight once.
"""
_BITS: Final = {2: torch.int16, 4: torch.int32, 8: torch.int64}
Outputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class RandomState:
    """Where the generators of a process stand."""

    torch: torch.Tensor
    python: object
    numpy: Any

    @classmethod
    def now(cls) -> "RandomState":
        """Read the generators."""
        numpy = sys.modules.get("numpy")
        return cls(torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state())

    def restore(self) -> None:
        """Set the generators."""
        torch.set_rng_state(self.torch)
        random.setstate(self.python)  # type: ignore[arg-type]
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)


@dataclass(frozen=True)
class Backward:
    """One backward pass through outputs of a module."""

    gradients: Outputs
    """Of the outputs, as the engine scaled them."""
    factor: float
    """What they are multiplied by to get the share of the step's gradient that this rank owes."""


@dataclass
class Forward:
    """What a module was given, and what it returned."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    random: RandomState
    training: tuple[bool, ...]
    """Of each module."""
    autocast: torch.dtype | None
    buffers: Tensors
    outputs: Outputs = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list)
    """The operators that made the outputs."""
    arrived: Outputs = field(default_factory=dict)
    """Gradients of the outputs from a backward pass that has not ended."""
    backwards: list[Backward] = field(default_factory=list)


class PlainModule:
    """A copy of a module, without its weights, made before DeepSpeed changes the module."""

    def __init__(self, module: torch.nn.Module) -> None:
        """Copy the module; raise CannotTell if that is not possible."""
        memo: dict[int, Any] = {}
        for weight in module.parameters():
            if weight.is_floating_point():
                memo[id(weight)] = _empty(weight)
        try:
            self.module = copy.deepcopy(module, memo)
        except Exception as error:  # noqa: BLE001 - a model may hold anything
            raise CannotTell(f"the model cannot be copied: {type(error).__name__}: {error}") from None
        for part in self.module.modules():
            part._parameters = dict(dict.items(part._parameters))  # `zero.Init` has one that gathers
        self._weights: Tensors = {}
        self._moved: Tensors = {}

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The weights by their names; a tied one has one name."""
        return dict(self.module.named_parameters())

    def take_weights(self, live: torch.nn.Module, seed: int) -> None:
        """Take the weights of the engine's module; all ranks have to, if they share them."""
        mine, theirs = self.parameters, dict(live.named_parameters())
        if mine.keys() != theirs.keys():
            name = min(mine.keys() ^ theirs.keys())
            raise CannotTell(f"DeepSpeed replaced parts of the model, such as {name}")
        generator = torch.Generator().manual_seed(seed)
        for name, weight in theirs.items():
            with deepspeed.zero.GatheredParameters([weight], enabled=hasattr(weight, "ds_id")):
                self._weights[name] = weight.detach().clone()
            self._moved[name] = moved(self._weights[name], generator)
            mine[name].requires_grad_(weight.requires_grad)

    def gradients(self, forward: Forward, *, rounds_otherwise: bool = False) -> tuple[Outputs, Tensors]:
        """Compute a forward pass and its backward passes; return outputs and gradients.

        Everything is computed as in the engine, also the scale of the loss, so that it rounds alike; the
        gradients are then multiplied by their factors.
        """
        self._load(self._moved if rounds_otherwise else self._weights)
        with _plain_linear():
            return self._gradients(forward)

    def _gradients(self, forward: Forward) -> tuple[Outputs, Tensors]:
        outputs = self._outputs(forward)
        found: Tensors = {}
        for number, backward in enumerate(forward.backwards, start=1):
            names = [name for name in backward.gradients if outputs[name].requires_grad]
            torch.autograd.backward(
                [outputs[name] for name in names],
                [backward.gradients[name] for name in names],
                retain_graph=number < len(forward.backwards),
            )
            for name, weight in self.parameters.items():
                if weight.grad is not None:
                    share = weight.grad.float() * backward.factor
                    found[name] = found[name] + share if name in found else share
                    weight.grad = None
        return {name: output.detach() for name, output in outputs.items()}, found

    def is_repeatable(self, forward: Forward) -> bool:
        """Whether two forward passes give the same."""
        self._load(self._weights)
        with torch.no_grad(), _plain_linear():
            first, second = self._outputs(forward), self._outputs(forward)
        return all(_is_equal(first[name], second[name]) for name in first)

    def _load(self, weights: Mapping[str, torch.Tensor]) -> None:
        for name, weight in self.parameters.items():
            weight.data = weights[name]

    def _outputs(self, forward: Forward) -> Outputs:
        for module, is_training in zip(self.module.modules(), forward.training, strict=True):
            module.training = is_training
        for name, buffer in forward.buffers.items():
            owner, _, own = name.rpartition(".")
            self.module.get_submodule(owner)._buffers[own] = buffer.clone()
        forward.random.restore()
        args, kwargs = copied((forward.args, forward.kwargs))
        with _autocast(forward.autocast):
            found = tensors_of(self.module(*args, **kwargs))
        if lost := [name for name in forward.outputs if name not in found]:
            raise CannotTell(f"the model returns something else each time: {lost[0] or 'its output'}")
        return {name: found[name] for name in forward.outputs}


def _empty(weight: torch.Tensor) -> torch.nn.Parameter:
    shape = getattr(weight, "ds_shape", weight.shape)
    empty: Any = torch.nn.Parameter(torch.empty(shape, dtype=weight.dtype), weight.requires_grad)
    if hasattr(weight, "ds_id"):  # models that gather it themselves look at these
        empty.ds_status, empty.ds_shape, empty.ds_numel = ZeroParamStatus.AVAILABLE, shape, shape.numel()
    return cast("torch.nn.Parameter", empty)


def moved(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a weight, some of whose numbers are moved to the next larger or smaller one in their format."""
    bits = _BITS.get(weight.element_size())
    if bits is None or not weight.is_floating_point():
        return weight
    steps = torch.randint(0, 2 * _MOVED, weight.shape, generator=generator)
    up, down = (steps == 0) & (weight != 0), (steps == 1) & (weight != 0)
    return (weight.view(bits) + up.to(bits) - down.to(bits)).view(weight.dtype)


def tensors_of(value: Any) -> dict[str, torch.Tensor]:
    """Return the floating-point tensors in what a module takes or returns, each once, by their places."""
    found: dict[int, tuple[str, torch.Tensor]] = {}

    def note(name: str, tensor: torch.Tensor) -> torch.Tensor:
        found.setdefault(id(tensor), (name, tensor))
        return tensor

    replaced(value, note)
    return dict(found.values())


def replaced(value: Any, replace: Callable[[str, torch.Tensor], torch.Tensor], name: str = "") -> Any:
    """Replace floating-point tensors in a value: in place, except in tuples."""
    if isinstance(value, torch.Tensor):
        return replace(name, value) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        items = [replaced(item, replace, f"{name}[{number}]") for number, item in enumerate(value)]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, Mapping):
        for key, item in list(value.items()):
            if (new := replaced(item, replace, f"{name}.{key}".lstrip("."))) is not item:
                value[key] = new  # type: ignore[index]
    elif is_dataclass(value) and not isinstance(value, type):
        for member in fields(value):
            item = getattr(value, member.name)
            if (new := replaced(item, replace, f"{name}.{member.name}".lstrip("."))) is not item:
                object.__setattr__(value, member.name, new)
    return value


def autocast_now() -> torch.dtype | None:
    """Return the format of `torch.autocast` around this; None outside of one."""
    if not torch.is_autocast_enabled("cpu"):
        return None
    return torch.get_autocast_dtype("cpu")


def _autocast(dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    context: contextlib.AbstractContextManager[Any] = torch.autocast("cpu", enabled=False)
    if dtype is not None:
        context = torch.autocast("cpu", dtype=dtype)
    return context


@contextlib.contextmanager
def _plain_linear() -> Iterator[None]:
    """Put back the function that `zero.Init` replaces in all of torch."""
    functional: Any = torch.nn.functional
    before = functional.linear
    functional.linear = torch._C._nn.linear
    try:
        yield
    finally:
        functional.linear = before


def _is_equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.shape != second.shape:
        return False
    return bool(torch.allclose(first.float(), second.float(), rtol=1e-6, atol=0.0, equal_nan=True))
