"""Size the buffers with which DeepSpeed swaps parameters to NVMe.

From DeepSpeed 0.19.8, files within deepspeed/runtime, and measured by rehearsal. A parameter holds a buffer
from when it is read until it is partitioned again (swap_tensor/partitioned_param_swapper.py), so there must
be as many buffers as parameters are gathered at once. Stage 3 keeps a parameter gathered if it is used
again within `stage3_max_reuse_distance` elements (zero/partitioned_param_coordinator.py,
__params_to_release). Prefetching takes every free buffer, and asks twice for a parameter that is used twice
soon, as with activation checkpointing; it then fails with "already assigned swap buffer"
(__prefetch_nvme_param_partitions). So a number of buffers is only sufficient without prefetching.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, chain, count
from typing import Final, NamedTuple

from zlaunch.config.resolve.compose import REUSE
from zlaunch.config.resolve.values import Values
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.schema.zero import OffloadParam
from zlaunch.dsconfig.text.document import KeyPath
from zlaunch.errors import Refused
from zlaunch.job.model import ModelConfig
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.transformer import Stack, Transformer, Weight, read_transformer
from zlaunch.units import plural, whole

DEVICE: KeyPath = (ZERO, "offload_param", "device")
COUNT: KeyPath = (ZERO, "offload_param", "buffer_count")
SIZE: KeyPath = (ZERO, "offload_param", "buffer_size")

MOST_DISTANCE: Final = 1_000_000_000
"""DeepSpeed's own `stage3_max_reuse_distance`."""
_LEAST_BYTES: Final = 1 << 20
"""A rank's part of a parameter that is smaller stays in host memory (swap_tensor/utils.py)."""
_FEWEST: Final = 5
"""DeepSpeed's own `buffer_count`."""
_SPARE: Final = 2
"""Extra buffers; models need up to one more than is computed."""


class NvmeBuffers(NamedTuple):
    """Settings for swapping a model's parameters; sizes in elements."""

    buffer_count: int
    buffer_size: int
    reuse_distance: int
    is_exact: bool
    """Whether the parameters of the model's type are known."""


class ParameterUse(NamedTuple):
    """One use of a parameter in a step."""

    parameter: int
    numel: int
    in_block: bool = False
    """Whether it is in a block of experts, which DeepSpeed treats as one unit that adds nothing to the
    distances outside of it."""


def fit_buffers(values: Values, model: ModelConfig | None, world_size: int) -> Values:
    """Size the buffers for parameters that are swapped to NVMe, where the user's file does not."""
    if values[DEVICE] != "nvme" or model is None:
        return values
    distance = None
    if not _is_preset(values, REUSE):
        distance = whole(values[REUSE])
        if distance is None:
            distance = MOST_DISTANCE
    needed = _buffers_of(values, model, world_size, distance)
    size = _buffer_size(model, needed, world_size)
    if size is not None and not values.has(SIZE):
        values = values.put(SIZE, size[0], Source.computed(size[1]))
    if needed is None:
        return values
    if distance is None:
        text = f"twice a layer of {model.source}"
        values = values.put(REUSE, needed.reuse_distance, Source.computed(text))
    if _is_preset(values, COUNT) or not values.has(COUNT):
        text = f"more than a step of {model.source} gathers at once"
        values = values.put(COUNT, needed.buffer_count, Source.computed(text))
    return values


def _buffers_of(
    values: Values, model: ModelConfig, world_size: int, distance: int | None
) -> NvmeBuffers | None:
    item = 4
    if any(values[(name, "enabled")] is True for name in ("bf16", "fp16")):
        item = 2
    with suppress(Refused):
        return nvme_buffers(read_transformer(model.value), world_size, item, distance)
    return None


def _buffer_size(model: ModelConfig, needed: NvmeBuffers | None, world_size: int) -> tuple[int, str] | None:
    """Make every partitioned parameter fit into one buffer; None where DeepSpeed's default is enough."""
    largest = -(-(model.largest_parameter or 0) // world_size)
    ranks = f"divided by {plural(world_size, 'rank')}"
    if needed is not None and needed.is_exact:
        size = max(largest, needed.buffer_size)
        return size + size // 16, f"the largest matrix in {model.source} and a sixteenth, {ranks}"
    if needed is not None:
        largest = max(largest, needed.buffer_size)
    if largest <= OffloadParam().buffer_size:
        return None
    return largest, f"the largest matrix in {model.source}, {ranks}"


def _is_preset(values: Values, path: KeyPath) -> bool:
    leaf = values.leaves.get(path)
    return leaf is not None and leaf.source.kind is SourceKind.PRESET


def nvme_buffers(
    model: Transformer, world_size: int, item: int, reuse_distance: int | None = None
) -> NvmeBuffers:
    """Size the buffers for a model; without a distance, it covers what a layer recomputes.

    A model of unknown type gets twice as many buffers.
    """
    if reuse_distance is None:
        layer = max(_numel_outside_blocks(stack) for stack in model.stacks)
        reuse_distance = min(MOST_DISTANCE, 2 * layer)
    least = -(-world_size * _LEAST_BYTES // item)
    orders = (list(parameter_order(model, checkpointing)) for checkpointing in (False, True))
    at_once = max(most_gathered(uses, reuse_distance, least) for uses in orders)
    # transformers gathers a module and what is in it to give it its first values.
    made = max(sum(weight.numel >= least for weight in stack.weights) for stack in model.stacks)
    buffers = max(at_once + _SPARE, made + _SPARE, _FEWEST)
    if not model.known:
        buffers *= 2
    return NvmeBuffers(buffers, -(-model.largest // world_size), reuse_distance, model.known)


def _numel_outside_blocks(stack: Stack) -> int:
    return sum(weight.numel for weight in stack.weights if not _in_block(weight.name))


def most_gathered(uses: Sequence[ParameterUse], distance: int, least: int) -> int:
    """Count the parameters of at least `least` elements that are gathered at the same time."""
    # Elements used before each use: outside of blocks, and with those in blocks.
    outside, with_blocks = [0], [0]
    for use in uses:
        with_blocks.append(with_blocks[-1] + use.numel)
        if use.in_block:
            outside.append(outside[-1])
        else:
            outside.append(outside[-1] + use.numel)
    changes, following = [0] * (len(uses) + 1), dict[int, int]()
    for at in range(len(uses) - 1, -1, -1):
        use, until, passed = uses[at], at + 1, outside
        if use.in_block:
            passed = with_blocks
        again = following.get(use.parameter)
        if again is not None and passed[again] - passed[at + 1] < distance:
            until = again
        if use.numel >= least:
            changes[at] += 1
            changes[until] -= 1
        following[use.parameter] = at
    return max(accumulate(changes))


def _in_block(name: str) -> bool:
    return name.startswith(("expert", "shared", "router"))


def parameter_order(model: Transformer, checkpointing: bool) -> Iterator[ParameterUse]:
    """List the parameters in the order in which a step uses them."""
    numbers = count()

    def numbered(weights: Sequence[Weight]) -> list[ParameterUse]:
        return [ParameterUse(next(numbers), weight.numel, _in_block(weight.name)) for weight in weights]

    start = numbered(model.embedding)
    layers: list[list[ParameterUse]] = []
    for stack in model.stacks:
        layers += [numbered(stack.weights) for _ in range(stack.num_layers)]
    end = numbered(model.head)
    if model.tied:
        end += start[:1]
    yield from start
    yield from chain.from_iterable(layers)
    yield from end
    yield from reversed(end)
    for layer in reversed(layers):
        if checkpointing:
            yield from layer
        yield from reversed(layer)
    yield from reversed(start)
