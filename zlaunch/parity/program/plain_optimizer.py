"""An optimizer of torch that stands for the one of an engine."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import optim

from zlaunch.estimate.rehearsal.training import base_optimizer
from zlaunch.parity.program.measured import Measured, Tensors, momentum
from zlaunch.parity.program.optimizers import UNSURE, class_of, options_of


def members(engine: Any) -> list[list[torch.nn.Parameter]] | None:
    """Return the weights of the model in each group of an engine's optimizer; None if they are not known."""
    optimizer = engine.optimizer
    groups = base_optimizer(engine).param_groups
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


class PlainOptimizer:
    """Takes the steps of an engine again, from the engine's weights with the engine's gradients."""

    def __init__(self, live: optim.Optimizer, groups: Sequence[Sequence[str]], weights: Tensors) -> None:
        """Use torch's class for weights in groups of names; LookupError if torch has no such optimizer."""
        kind = _kind_of(live)
        self._kind = kind
        self._weights = {name: weight.clone() for name, weight in weights.items()}
        options = [
            {"params": [self._weights[name] for name in group], **options_of(kind, group_options)}
            for group, group_options in zip(groups, live.param_groups, strict=True)
        ]
        arguments: Any = options
        self._optimizer = kind(arguments, **options_of(kind, live.defaults))

    def step(
        self, before: Tensors, gradients: Tensors, groups: Sequence[Mapping[str, Any]], clipping: float
    ) -> Measured:
        """Take a step from these weights with these gradients.

        `groups` has the options of each group, such as the learning rate of this step.
        """
        for mine, live in zip(self._optimizer.param_groups, groups, strict=True):
            mine.update(options_of(self._kind, live))
        return take_step(self._optimizer, self._weights, before, gradients, clipping)


def take_step(
    optimizer: Any, weights: Tensors, before: Tensors, gradients: Tensors, clipping: float
) -> Measured:
    """Take a step of an optimizer from weights `before`, with gradients clipped to a norm if it is not 0.

    `weights` are those that the optimizer has. Returns new weights, momenta, and what of updates is unsure.
    """
    norm = norm_of(gradients.values())
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(before[name])
            weight.grad = torch.zeros_like(weight)
            if name in gradients:
                weight.grad += gradients[name]
            if 0 < clipping < norm:
                weight.grad *= clipping / (norm + 1e-6)
    optimizer.step()
    states = {name: optimizer.state[weight] for name, weight in weights.items()}
    momenta = {name: momentum(state) for name, state in states.items()}
    return Measured(
        masters=[{name: weight.clone() for name, weight in weights.items()}],
        momenta=[{name: state for name, state in momenta.items() if state is not None}],
        unsure=[{name: state[UNSURE] for name, state in states.items() if UNSURE in state}],
        momentum_rounding=getattr(optimizer, "momentum_rounding", 0.0),
    )


def norm_of(gradients: Iterable[torch.Tensor]) -> float:
    """Return the norm of all gradients together."""
    return float(torch.stack([gradient.double().norm() for gradient in gradients]).norm())


def _kind_of(live: optim.Optimizer) -> type[optim.Optimizer]:
    kind: type[optim.Optimizer] | None = type(live)
    if not type(live).__module__.startswith("torch.optim"):
        kind = class_of(type(live).__name__, getattr(live, "adam_w_mode", True))
    if kind is None:
        raise LookupError(type(live).__name__)
    return kind
