"""The sizes of a batch and the ranks that divide it, as DeepSpeed computes them (`runtime/config.py`)."""

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from zlaunch.frozen import dataclass
from zlaunch.units import whole

Size = int | Fraction


def data_ranks(
    world_size: int | None, sequence_parallel_size: int | None, data_parallel_size: int | None
) -> Fraction | None:
    """Count the ranks that divide a global batch; None if unknown.

    Both sizes together are a device mesh, one of them alone is only a divisor: DeepSpeed computes with the
    fraction. Ranks that share layers (AutoTP) or experts (AutoEP) each count.
    """
    if sequence_parallel_size and data_parallel_size:
        return Fraction(data_parallel_size)
    if world_size is None:
        return None
    return Fraction(world_size, sequence_parallel_size or 1)


@dataclass(frozen=True, slots=True)
class RankGroups:
    """The ranks of a job by what they share, as DeepSpeed's engine groups them."""

    world_size: int
    layers: int = 1
    """Ranks that share each layer (AutoTP): they train on the same sequences."""
    sequences: int = 1
    """Ranks that share each sequence (Ulysses): each has all parameters."""
    secondary: int = 1
    """Ranks that keep a second partition of all parameters together (hpZ)."""

    @property
    def zero(self) -> int:
        """Ranks among which ZeRO partitions: those with the same part of each layer."""
        return max(1, self.world_size // self.layers)

    @property
    def are_split(self) -> bool:
        """Whether ranks share layers or sequences."""
        return self.layers > 1 or self.sequences > 1

    @property
    def batch(self) -> int:
        """Ranks that multiply a batch, as DeepSpeed counts: all that do not share sequences."""
        return max(1, self.world_size // self.sequences)

    @property
    def data(self) -> int:
        """Ranks that train on sequences of their own."""
        return max(1, self.zero // self.sequences)


def rank_groups(ds_config: Mapping[str, object], world_size: int) -> RankGroups:
    """Read the groups of a job from its ds_config; what is no number or has no effect counts as 1."""
    zero, layers = ds_config.get("zero_optimization"), ds_config.get("tensor_parallel")
    secondary = None
    if isinstance(zero, Mapping) and whole(zero.get("stage")) == 3:
        secondary = whole(zero.get("zero_hpz_partition_size"))
    sharing = None
    if isinstance(layers, Mapping):
        sharing = whole(layers.get("autotp_size"))
    return RankGroups(
        world_size,
        layers=sharing or 1,
        sequences=whole(ds_config.get("sequence_parallel_size")) or 1,
        secondary=min(secondary or 1, world_size),
    )


class BatchSizes(NamedTuple):
    """The three sizes of a batch; None for those that are not given."""

    total: Size | None
    micro: int | None
    accumulation: int | None

    def completed(self, ranks: Fraction) -> "BatchSizes":
        """Derive what is missing (`_set_batch_related_parameters`); divisions are rounded down."""
        total, micro, accumulation = self
        if total is not None and micro is not None and accumulation is None:
            return BatchSizes(total, micro, int(total // micro // ranks))
        if accumulation is None:
            accumulation = 1
        if total is None and micro is not None:
            total = micro * accumulation * ranks
        elif total is not None and micro is None:
            micro = int(total // ranks // accumulation)
        return BatchSizes(total, micro, accumulation)

    def holds(self, ranks: Fraction) -> bool:
        """Whether DeepSpeed accepts the sizes (`_batch_assertion`)."""
        total, micro, accumulation = self.completed(ranks)
        if total is None or micro is None or accumulation is None:
            return False
        return min(total, micro, accumulation) > 0 and total == micro * accumulation * ranks
