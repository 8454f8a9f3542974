"""An optimizer of torch that stands for the one of an engine."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import optim

from zlaunch.parity.program.measured import Tensors, momentum

_OF_DEEPSPEED: Final = ("FusedAdam", "DeepSpeedCPUAdam")
_KERNELS: Final = ("fused", "foreach", "capturable", "differentiable")
"""Options that choose how something is computed, not what."""


def members(engine: Any) -> list[list[torch.nn.Parameter]] | None:
    """Return the weights of the model in each group of an engine's optimizer; None if they are not known."""
    optimizer = engine.optimizer
    groups = base_of(engine).param_groups
    names = ("bit16_groups", "bf16_groups", "fp16_groups")
    parts = next((getattr(optimizer, name) for name in names if hasattr(optimizer, name)), None)
    if parts is None:
        return [list(group["params"]) for group in groups]
    numbers = getattr(optimizer, "sub_group_to_group_id", None) or dict(enumerate(range(len(parts))))
    found: list[list[torch.nn.Parameter]] = [[] for _ in groups]
    if max(numbers.values(), default=0) >= len(found):
        return None
    for number, part in enumerate(parts):
        found[numbers[number]] += part
    return found


def base_of(engine: Any) -> optim.Optimizer:
    """Return the optimizer that DeepSpeed has wrapped."""
    base: optim.Optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
    return base


class PlainOptimizer:
    """Takes the steps of an engine again, from the engine's weights with the engine's gradients."""

    def __init__(self, live: optim.Optimizer, groups: Sequence[Sequence[str]], weights: Tensors) -> None:
        """Use torch's class for weights in groups of names; LookupError if torch has no such optimizer."""
        kind = _kind_of(live)
        self._names = inspect.signature(kind.__init__).parameters
        self._weights = {name: weight.clone() for name, weight in weights.items()}
        options = [
            {"params": [self._weights[name] for name in group], **self._options(group_options)}
            for group, group_options in zip(groups, live.param_groups, strict=True)
        ]
        arguments: Any = options
        self._optimizer = kind(arguments, **self._options(live.defaults))

    def step(
        self, before: Tensors, gradients: Tensors, groups: Sequence[Mapping[str, Any]], clipping: float
    ) -> tuple[Tensors, Tensors]:
        """Take a step from these weights with these gradients, clipped; return new weights, and momenta.

        `groups` has the options of each group, such as the learning rate of this step.
        """
        norm = norm_of(gradients.values())
        for mine, live in zip(self._optimizer.param_groups, groups, strict=True):
            mine.update(self._options(live))
        with torch.no_grad():
            for name, weight in self._weights.items():
                weight.copy_(before[name])
                weight.grad = gradients[name].clone() if name in gradients else torch.zeros_like(weight)
                if 0 < clipping < norm:
                    weight.grad *= clipping / (norm + 1e-6)
        self._optimizer.step()
        after = {name: weight.clone() for name, weight in self._weights.items()}
        states = {name: momentum(self._optimizer.state[weight]) for name, weight in self._weights.items()}
        return after, {name: state for name, state in states.items() if state is not None}

    def _options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: value
            for name, value in options.items()
            if name in self._names and name not in ("params", *_KERNELS)
        }


def norm_of(gradients: Iterable[torch.Tensor]) -> float:
    """Return the norm of all gradients together."""
    return float(torch.stack([gradient.double().norm() for gradient in gradients]).norm())


def _kind_of(live: optim.Optimizer) -> type[optim.Optimizer]:
    kind: type[optim.Optimizer] = type(live)
    if kind.__module__.startswith("torch.optim"):
        return kind
    if kind.__name__ in _OF_DEEPSPEED:
        is_decoupled: Any = getattr(live, "adam_w_mode", True)
        plain: dict[bool, type[optim.Optimizer]] = {True: optim.AdamW, False: optim.Adam}
        return plain[bool(is_decoupled)]
    raise LookupError(kind.__name__)
