"""The tables of the ZeRO paper (Rajbhandari et al. 2020), digit for digit."""

from itertools import pairwise
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from tests.estimate.memory.jobs import job
from zlaunch.estimate.memory.model_states import MIXED_ADAM, ModelStates, model_states
from zlaunch.estimate.memory.settings import read_settings

SIZES = (7.5e9, 128e9, 1e12)

# Table 1: ranks -> for each size in GB: stage 1, stage 2, stage 3, as printed.
TABLE_1: dict[int, tuple[tuple[float, float, float], ...]] = {
    1: ((120, 120, 120), (2048, 2048, 2048), (16000, 16000, 16000)),
    4: ((52.5, 41.3, 30), (896, 704, 512), (7000, 5500, 4000)),
    16: ((35.6, 21.6, 7.5), (608, 368, 128), (4750, 2875, 1000)),
    64: ((31.4, 16.6, 1.88), (536, 284, 32), (4187, 2218, 250)),
    256: ((30.4, 15.4, 0.47), (518, 263, 8), (4046, 2054, 62.5)),
    1024: ((30.1, 15.1, 0.12), (513, 257, 2), (4011, 2013, 15.6)),
}
CELLS = [
    (ranks, size, stage, printed)
    for ranks, row in TABLE_1.items()
    for size, cells in zip(SIZES, row, strict=True)
    for stage, printed in enumerate(cells, start=1)
]
STAGES = st.integers(0, 3)


def as_printed(gigabytes: float) -> float:
    """Write a number as the paper does: cut off from 100 GB on, rounded below.

    Cut off, not rounded, are 513.5, 257.75, 4187.5, 2218.75, 4046.875, 2054.6875, 4011.72 and 2013.67.
    """
    if gigabytes >= 100:
        return floor(gigabytes)
    return round(gigabytes, 2 if gigabytes < 2 else 1)


@each(("ranks", "size", "stage", "printed"), CELLS)
def test_a_cell_of_table_1_is_what_the_paper_prints(
    ranks: int, size: float, stage: int, printed: float
) -> None:
    gigabytes = model_states(size, stage, ranks).total / 1e9
    # 41.25 is printed as 41.3: halves go up.
    assert as_printed(gigabytes + 1e-9) == printed


def test_table_1_has_54_cells() -> None:
    assert len(CELLS) == 54


# Table 2, left: the largest model in billions on 64 GPUs of 32 GB.
@pytest.mark.parametrize(("stage", "billions"), [(0, 2), (1, 7.6), (2, 14.4), (3, 128)])
def test_the_largest_model_on_64_gpus_is_what_the_paper_prints(stage: int, billions: float) -> None:
    assert round(32 / model_states(1, stage, 64).total, 1) == billions


# Figure 1: 7.5 billion parameters on 64 GPUs.
@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_figure_1_is_what_the_paper_prints(stage: int, gigabytes: float) -> None:
    assert round(model_states(7.5e9, stage, 64).total / 1e9, 1) == gigabytes


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_mixed_precision_does_not_change_what_adam_takes(precision: str) -> None:
    assert read_settings(job("gpt2", 0, precision=precision)).per_parameter.total == MIXED_ADAM.total == 16


@given(st.floats(1, 1e13), st.integers(1, 4096), st.integers(0, 12), st.booleans())
def test_a_higher_stage_never_needs_more(size: float, ranks: int, states: int, half: bool) -> None:
    per_param = ModelStates(2, 2, states) if half else ModelStates(4, 4, states)
    needs = [model_states(size, stage, ranks, per_param).total for stage in range(4)]
    assert all(higher <= lower for lower, higher in pairwise(needs))


@given(st.floats(1, 1e13), st.integers(1, 4096), STAGES)
def test_more_ranks_never_need_more_on_each(size: float, ranks: int, stage: int) -> None:
    assert model_states(size, stage, ranks + 1).total <= model_states(size, stage, ranks).total
