"""What DeepSpeed needs to swap parameters to NVMe: how many buffers, how large, and which of its habits.

Read in DeepSpeed 0.19.8, files within deepspeed/runtime, and measured by rehearsal. A parameter holds a
buffer from when it is read until it is partitioned again (swap_tensor/partitioned_param_swapper.py), so
there must be as many buffers as parameters are gathered at once. Stage 3 keeps a parameter gathered if
it is used again within `stage3_max_reuse_distance` elements (zero/partitioned_param_coordinator.py,
__params_to_release). What it reads ahead takes every buffer that is free, and asks for a parameter twice
when it is to be used twice soon, as with activation checkpointing: then it stops at "already assigned
swap buffer" (__prefetch_nvme_param_partitions). Only without reading ahead does a number suffice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, count
from typing import Final

from zlaunch.job.transformer import Transformer, Weight

MOST_DISTANCE: Final = 1_000_000_000
"""DeepSpeed's own `stage3_max_reuse_distance`."""
_LEAST_BYTES: Final = 1 << 20
"""A rank's part of a parameter that is smaller stays in host memory (swap_tensor/utils.py)."""
_FEWEST: Final = 5
"""DeepSpeed's own `buffer_count`."""
_SPARE: Final = 2
"""Buffers more than the order of the layers asks for; models differ by one from what is worked out."""


@dataclass(frozen=True, slots=True)
class NvmeBuffers:
    """Settings with which a model's parameters can be swapped; elements, but for the count."""

    buffer_count: int
    buffer_size: int
    reuse_distance: int
    is_exact: bool
    """Whether the model is of a type whose parameters are known."""


@dataclass(frozen=True, slots=True)
class ParameterUse:
    """One use of a parameter in the course of a step."""

    parameter: int
    numel: int
    in_block: bool = False
    """Whether it is in a block of experts: that is one whole to DeepSpeed, and for what is outside of
    it, it adds nothing to a distance."""


def nvme_buffers(
    model: Transformer, world_size: int, item: int, reuse_distance: int | None = None
) -> NvmeBuffers:
    """Work out what a model needs; without a distance, what a layer computes again is read once for both.

    Twice as many buffers are taken for a model whose type is unknown.
    """
    layer = max(sum(one.numel for one in stack.weights if not _in_block(one.name)) for stack in model.stacks)
    distance = min(MOST_DISTANCE, 2 * layer) if reuse_distance is None else reuse_distance
    least = -(-world_size * _LEAST_BYTES // item)
    orders = (list(parameter_order(model, checkpointing)) for checkpointing in (False, True))
    at_once = max(most_gathered(uses, distance, least) for uses in orders)
    # transformers gathers a module and what is in it to give it its first values.
    made = max(sum(weight.numel >= least for weight in stack.weights) for stack in model.stacks)
    buffers = max(at_once + _SPARE, made + _SPARE, _FEWEST) * (1 if model.known else 2)
    return NvmeBuffers(buffers, -(-model.largest // world_size), distance, model.known)


def most_gathered(uses: Sequence[ParameterUse], distance: int, least: int) -> int:
    """Count the parameters of at least so many elements that are gathered at once."""
    outside, all_of_it = [0], [0]
    for use in uses:
        outside.append(outside[-1] + (0 if use.in_block else use.numel))
        all_of_it.append(all_of_it[-1] + use.numel)
    changes, following = [0] * (len(uses) + 1), dict[int, int]()
    for at in range(len(uses) - 1, -1, -1):
        use = uses[at]
        again, passed = following.get(use.parameter), all_of_it if use.in_block else outside
        until = again if again is not None and passed[again] - passed[at + 1] < distance else at + 1
        if use.numel >= least:
            changes[at] += 1
            changes[until] -= 1
        following[use.parameter] = at
    return max(accumulate(changes))


def _in_block(name: str) -> bool:
    return name.startswith(("expert", "shared", "router"))


def parameter_order(model: Transformer, checkpointing: bool) -> Iterator[ParameterUse]:
    """Say in which order a step uses its parameters."""
    numbers = count()

    def numbered(weights: Sequence[Weight]) -> list[ParameterUse]:
        return [ParameterUse(next(numbers), one.numel, _in_block(one.name)) for one in weights]

    start = numbered(model.embedding)
    layers = [numbered(stack.weights) for stack in model.stacks for _ in range(stack.num_layers)]
    end = [*numbered(model.head), *(start[:1] if model.tied else ())]
    yield from start
    yield from chain.from_iterable(layers)
    yield from end
    yield from reversed(end)
    for layer in reversed(layers):
        if checkpointing:
            yield from layer
        yield from reversed(layer)
    yield from reversed(start)
