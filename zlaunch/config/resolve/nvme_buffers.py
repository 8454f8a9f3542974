"""Settings for swapping parameters to NVMe: number and size of buffers, and reuse distance.

Derived from the source of DeepSpeed 0.19.8 (files are relative to deepspeed/runtime) and checked by
rehearsals. A parameter occupies a buffer from its read until it is partitioned again
(swap_tensor/partitioned_param_swapper.py), so there must be as many buffers as parameters are gathered at
once. Stage 3 keeps a parameter gathered if it is used again within `stage3_max_reuse_distance` elements
(zero/partitioned_param_coordinator.py, __params_to_release). Prefetching takes every free buffer, and
requests a parameter twice if it is soon used twice, as with activation checkpointing; it then fails with
"already assigned swap buffer" (__prefetch_nvme_param_partitions). The number of buffers is therefore only
sufficient without prefetching.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, count
from typing import Final

from zlaunch.job.transformer import Transformer, Weight

MOST_DISTANCE: Final = 1_000_000_000
"""Default of `stage3_max_reuse_distance`."""
_LEAST_BYTES: Final = 1 << 20
"""Smaller partitions of a parameter stay in host memory (swap_tensor/utils.py)."""
_FEWEST: Final = 5
"""Default of `buffer_count`."""
_SPARE: Final = 2
"""Additional buffers: models differ by one from the computed number."""


@dataclass(frozen=True, slots=True)
class NvmeBuffers:
    """Settings that can swap a model's parameters; sizes in elements."""

    buffer_count: int
    buffer_size: int
    reuse_distance: int
    is_exact: bool
    """Whether the model type is known."""


@dataclass(frozen=True, slots=True)
class ParameterUse:
    """One use of a parameter in a step."""

    parameter: int
    numel: int
    in_block: bool = False
    """Whether it is in a block of experts, which DeepSpeed treats as one module: it does not count in the
    distances of parameters outside."""


def nvme_buffers(
    model: Transformer, world_size: int, item: int, reuse_distance: int | None = None
) -> NvmeBuffers:
    """Compute the settings for a model; `item` is bytes per element.

    Without `reuse_distance`, it is two layers: parameters stay gathered between recomputation and
    backward pass. Models of unknown type get twice as many buffers.
    """
    layer = max(sum(one.numel for one in stack.weights if not _in_block(one.name)) for stack in model.stacks)
    distance = min(MOST_DISTANCE, 2 * layer) if reuse_distance is None else reuse_distance
    least = -(-world_size * _LEAST_BYTES // item)
    orders = (list(parameter_order(model, checkpointing)) for checkpointing in (False, True))
    at_once = max(max_gathered(uses, distance, least) for uses in orders)
    # transformers gathers a module with all its children to initialize it.
    initialized = max(sum(weight.numel >= least for weight in stack.weights) for stack in model.stacks)
    buffers = max(at_once + _SPARE, initialized + _SPARE, _FEWEST) * (1 if model.known else 2)
    return NvmeBuffers(buffers, -(-model.largest // world_size), distance, model.known)


def max_gathered(uses: Sequence[ParameterUse], distance: int, least: int) -> int:
    """Return the largest number of parameters with at least `least` elements that are gathered at once."""
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
    """Yield the parameters in the order in which a step uses them."""
    numbers = count()

    def uses(weights: Sequence[Weight]) -> list[ParameterUse]:
        return [ParameterUse(next(numbers), one.numel, _in_block(one.name)) for one in weights]

    start = uses(model.embedding)
    layers = [uses(stack.weights) for stack in model.stacks for _ in range(stack.num_layers)]
    end = [*uses(model.head), *(start[:1] if model.tied else ())]
    yield from start
    yield from chain.from_iterable(layers)
    yield from end
    yield from reversed(end)
    for layer in reversed(layers):
        if checkpointing:
            yield from layer
        yield from reversed(layer)
    yield from reversed(start)
