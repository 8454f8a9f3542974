"""Where each parameter is in the flat groups of stages 1 and 2.

Parameters of a group follow each other, each with its padding, in the order of `param_shapes`; all ranks have
an equal part of the row. Source: `__init__` in deepspeed/runtime/zero/stage_1_and_2.py.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

Shapes = Mapping[str, tuple[int, ...]]


def starts(shapes: Shapes, paddings: Sequence[int]) -> Iterator[int]:
    """Say where each parameter begins in the row of all ranks, and at last where the row ends."""
    numels = [math.prod(shape) for shape in shapes.values()]
    yield from accumulate(map(sum, zip(numels, paddings, strict=True)), initial=0)


def fragments(
    shapes: Shapes, paddings: Sequence[int], rank: int, share: int
) -> Iterator[tuple[str, int, int]]:
    """Name what a rank has of each parameter, as (name, start in its part, count); `share` is its size."""
    begin, end = rank * share, (rank + 1) * share
    for (name, shape), start in zip(shapes.items(), starts(shapes, paddings), strict=False):
        first, last = max(start, begin), min(start + math.prod(shape), end)
        if first < last:
            yield name, first - begin, last - first


def can_be_reordered(groups: Sequence[Shapes], ranks: int) -> bool:
    """Whether `round_robin_gradients` changes the order: it deals the parameters out to so many ranks."""
    return any(len(shapes) > ranks > 1 for shapes in groups)
