"""What a process measures, step by step, and how far two of them are from each other."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from zlaunch.parity.verdict import Distance, Quantity

Tensors = dict[str, torch.Tensor]

LAST_BIT = 2**-24
"""Half of the last bit of a number in fp32: what adding an update to a weight may lose, of the weight."""

MOMENTA = ("exp_avg", "momentum_buffer", "sum", "square_avg", "exp_avg_sq")
"""States that are linear in the clipped gradients, or its squares: the first one of an optimizer counts.

An update of Adam does not show that all its gradients had the same factor; these do.
"""


@dataclass
class Measured:
    """What one process measured; each list has an item for each step."""

    losses: list[float] = field(default_factory=list)
    norms: list[float | None] = field(default_factory=list)
    """Of the gradients before they are clipped; None where the engine computes none."""
    gradients: list[Tensors] = field(default_factory=list)
    """Before they are clipped."""
    summands: list[dict[str, float]] = field(default_factory=list)
    """Length of a gradient if those of all micro-batches had one direction."""
    momenta: list[Tensors] = field(default_factory=list)
    unsure: list[dict[str, float]] = field(default_factory=list)
    """The length of the part of an update that rounding decides, for optimizers where it may be long."""
    momentum_rounding: float = 0.0
    """How far momenta may be off by the rounding of the optimizer's coefficients."""
    masters: list[Tensors] = field(default_factory=list)
    """Master weights, before the first step and after each."""
    stale: list[dict[str, float]] = field(default_factory=list)
    """How far the model's weights are from the master weights, where they are not those rounded."""
    reached: set[str] = field(default_factory=set)
    """Parameters that got a gradient."""
    parameters: int = 0
    optimizer: str = ""
    clipping: float = 0.0
    """The norm that the engine clips gradients to; 0 for none."""


def momentum(state: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the state of an optimizer to compare."""
    found = next((state[name] for name in MOMENTA if isinstance(state.get(name), torch.Tensor)), None)
    if found is None:
        return None
    return found.detach().float().clone()


def of_gradients(engine: Measured, expected: Measured, other: Measured) -> Iterator[Distance]:
    """Compare losses and gradients, beside a run of plain torch that rounds otherwise."""
    for step in range(len(expected.gradients)):
        if expected.losses:
            yield _of_number("loss", step, engine.losses, expected.losses, other.losses)
        summands = expected.summands[step]
        if engine.norms[step] is not None:
            norm = _of_number("gradient norm", step, engine.norms, expected.norms, other.norms)
            yield replace(norm, cancels=_part(math.hypot(*summands.values()), expected.norms[step]))
        for name in sorted(expected.reached):
            right = expected.gradients[step][name]
            gradient = engine.gradients[step].get(name, torch.zeros_like(right))
            rounding = apart(other.gradients[step][name], right)
            distance = _distance("gradient", step, (gradient, right), rounding, name)
            yield replace(distance, cancels=_part(summands[name], float(right.norm())))


def of_steps(engine: Measured, expected: Measured, earlier: Tensors | None = None) -> Iterator[Distance]:
    """Compare what the optimizers made of the same gradients; `earlier` are momenta before the first step."""
    for step, masters in enumerate(expected.masters):
        before_step = engine.momenta[step - 1] if step else earlier or {}
        for name, weight in masters.items():
            before = engine.masters[step][name]
            cancels = 1.0
            if name in engine.momenta[step] and name in expected.momenta[step]:
                mine, its = engine.momenta[step][name], expected.momenta[step][name]
                cancels = _part(_summands(its, before_step.get(name)), float(its.norm()))
                distance = _distance("momentum", step, (mine, its), expected.momentum_rounding, name)
                yield replace(distance, cancels=cancels)
            unsure = 0.0
            if expected.unsure:
                unsure = expected.unsure[step].get(name, 0.0)
            weights = (before, engine.masters[step + 1][name], weight)
            yield replace(of_update("update", step, weights, unsure, name), cancels=cancels)
        for name, apart in engine.stale[step].items():
            yield Distance("weights", step + 1, apart, 0.0, name)


def of_update(
    quantity: Quantity,
    step: int,
    weights: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    unsure: float,
    name: str,
) -> Distance:
    """Compare two updates: weights before, and after each. Rounding decides a part of them."""
    before, mine, its = weights
    mine, its = mine - before, its - before
    rounding = 0.0
    if length := float(its.norm()):
        rounding = (LAST_BIT * float(before.norm()) + unsure) / length
    return _distance(quantity, step, (mine, its), rounding, name)


def _summands(momentum: torch.Tensor, before: torch.Tensor | None) -> float:
    """Return how long the parts of a momentum are together: what was there before, and what was added."""
    if before is None:
        return float(momentum.norm())
    return float(before.norm()) + float((momentum - before).norm())


def _distance(
    quantity: Quantity, step: int, vectors: tuple[torch.Tensor, torch.Tensor], rounding: float, name: str
) -> Distance:
    mine, its = vectors
    ratio = 1.0
    if length := float(its.norm()):
        ratio = float(mine.norm()) / length
    return Distance(quantity, step + 1, apart(mine, its), rounding, name, ratio)


def _of_number(quantity: Quantity, step: int, engine: Any, expected: Any, other: Any) -> Distance:
    values = [torch.tensor([float(run[step])], dtype=torch.double) for run in (engine, expected, other)]
    mine, its, another = values
    return Distance(quantity, step + 1, apart(mine, its), apart(another, its), ratio=float(mine / its))


def _part(summands: float, length: float | None) -> float:
    if not length:
        return 1.0
    return summands / length


def apart(mine: torch.Tensor, its: torch.Tensor) -> float:
    """Return the length of a difference, relative to the second vector."""
    difference, length = float((mine.double() - its.double()).norm()), float(its.double().norm())
    if length:
        return difference / length
    if difference:
        return float("inf")
    return 0.0
