"""The sizes of a batch and the ranks that divide it, as DeepSpeed computes them (`runtime/config.py`)."""

from fractions import Fraction
from typing import NamedTuple

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
