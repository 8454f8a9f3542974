"""How much disk DeepSpeed's conversion to the universal format takes while it runs.

Source: deepspeed/checkpoint/ds_to_universal.py of 0.19.8. It writes each part of each state of a parameter to
a file, merges these files, and deletes them when all are merged. Before that, it writes the rest of the model
in fp32 below stage 3, and the whole first file of the optimizer at stage 3; after it, it copies the model.
"""

import math
from collections.abc import Iterable, Sequence

from zlaunch.checkpoint.engine_files import EngineFiles, ModelFile, OptimFile
from zlaunch.checkpoint.swap_files import partition_numel
from zlaunch.checkpoint.torch_file import ITEM_BYTES
from zlaunch.frozen import dataclass

_FP32_BYTES = 4

_ARCHIVE_BYTES = 1500
"""What a file of `torch.save` has beside the numbers of its tensor."""

_BLOCK_BYTES = 4096
"""Unit of space of a file system; a directory takes one."""


@dataclass(frozen=True)
class DiskNeed:
    """Space that a conversion takes, in bytes."""

    certain: int
    """What its numbers alone take at their peak: with less, it certainly fails."""
    peak: int
    """The same with what files and directories add to it."""


def disk_need(engine: EngineFiles) -> DiskNeed:
    """Compute what the conversion of a checkpoint takes. Raise BadArchive if its files are damaged."""
    model, shards = engine.first_model, [OptimFile(file) for _, file in sorted(engine.optim.items())]
    parts, is_sharded = len(shards), shards[0].stage == 3
    states = [ITEM_BYTES[dtype] for dtype in shards[0].state_types]
    counts: list[int] = []
    for group in model.shapes:
        counts += map(math.prod, group.values())
    merged = sum(states) * sum(counts)
    in_memory, first_shard = 0, engine.optim[min(engine.optim)].stat().st_size
    if any(shard.is_swapped for shard in shards):  # what was on NVMe is copied to files of the optimizer
        first_shard = sum(states) * sum(partition_numel(shapes, parts) for shapes in model.shapes)
        in_memory = parts * first_shard
    copies = sum(file.stat().st_size for file in engine.model.values())
    if is_sharded:
        certain = max(in_memory + 2 * merged + first_shard, merged + copies)
        files = _files(counts, states, parts) + _files(counts, states)
        return DiskNeed(certain, certain + files - 2 * merged)
    rest = _rest(model)
    others = merged + _FP32_BYTES * sum(rest)
    certain = max(merged + others, others + copies)
    files = 2 * _files(counts, [*states, 0]) + _files(rest, [_FP32_BYTES])  # each with its step
    cuts = len(model.shapes) * (parts - 1) * len(states)  # of parameters where the part of a rank ends
    return DiskNeed(certain, certain + files + cuts * _BLOCK_BYTES - merged - others)


def _rest(model: ModelFile) -> list[int]:
    """Count the numbers of buffers, frozen parameters, and further names of tied ones."""
    trained = model.trained
    return [tensor.numel for name, tensor in model.module.items() if name not in trained]


def _files(counts: Iterable[int], states: Sequence[int], parts: int = 1) -> int:
    """What the files of all parameters take, each state in so many parts, and their directories."""
    return sum(
        parts * sum(_blocks(size * math.ceil(count / parts)) for size in states) + 2 * _BLOCK_BYTES
        for count in counts
    )


def _blocks(numbers: int) -> int:
    return math.ceil((numbers + _ARCHIVE_BYTES) / _BLOCK_BYTES) * _BLOCK_BYTES
