"""The numbers of an optimizer on NVMe: a checkpoint has DeepSpeed's swap files of them.

At stage 3, a group of parameters is swapped if its part in a rank has 1 MiB or more. In the file of the
optimizer its tensors are then empty; each has a file in `offloaded_tensors`, with padding at its end. It is
named by the first and last parameter of the group: `ds_id` in runtime/swap_tensor/optimizer_utils.py.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zlaunch.checkpoint.engine_files import OFFLOADED, ModelFile, OptimFile
from zlaunch.checkpoint.flat_groups import Shapes
from zlaunch.checkpoint.torch_file import BadArchive, Tensor
from zlaunch.frozen import dataclass

if TYPE_CHECKING:
    import numpy as np

_ITEM_BYTES = 4


@dataclass(frozen=True)
class SwapFile:
    """One tensor of the optimizer of a rank."""

    path: Path
    group: int
    """The number of the group of parameters."""
    state: str
    """Which state of the optimizer it is, such as `exp_avg`; empty for the parameters themselves."""
    tensor: Tensor
    """Its form, as if it were in the file of the optimizer."""

    @property
    def problem(self) -> str | None:
        """Say what is wrong with the file."""
        wanted = self.tensor.numel * _ITEM_BYTES
        try:
            size = self.path.stat().st_size
        except OSError:
            return "it is missing: a part of the optimizer, which was on NVMe"
        return None if size >= wanted else f"it has {size} of at least {wanted} bytes"

    def read(self, tensor: Tensor) -> "np.ndarray[Any, Any]":
        """Map the numbers, without the padding."""
        import numpy as np

        return np.memmap(self.path, np.float32, "r", shape=(tensor.numel,))


def swap_files(model: ModelFile, shard: OptimFile, rank: int) -> Iterator[SwapFile]:
    """Name the swap files that a rank must have. Raise BadArchive if they are not in fp32."""
    if not model.has_fp32_master:
        raise BadArchive("its numbers on NVMe are not in fp32, and cannot be read")
    folder = shard.archive.file.parent / OFFLOADED / f"rank{rank:02}"
    for number, (group, shapes) in enumerate(zip(shard.groups, model.shapes, strict=False)):
        numel = partition_numel(shapes, shard.ranks or 1)
        if group.numel or not numel or not group.ds_id:
            continue
        for state in ("", *shard.empty_states(number)):
            prefix = f"{state}-" if state else ""
            file = folder / f"{prefix}{group.ds_id}.tensor.swp"
            yield SwapFile(file, number, state, replace(group, shape=(numel,), stride=(1,)))


def partition_numel(shapes: Shapes, ranks: int) -> int:
    """Count what each rank has of some parameters at stage 3: an equal part of each, with padding."""
    return sum(math.ceil(math.prod(shape) / ranks) for shape in shapes.values())
