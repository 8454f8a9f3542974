"""Ranks by what they share."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.dsconfig.batch import data_ranks, rank_groups

SIZES = st.sampled_from([1, 2, 4])


def config(layers: int = 1, sequences: int = 1) -> dict[str, Any]:
    return {"tensor_parallel": {"autotp_size": layers}, "sequence_parallel_size": sequences}


@given(SIZES, SIZES, st.integers(1, 8))
def test_ranks_that_share_nothing_train_on_sequences_of_their_own(
    layers: int, sequences: int, data: int
) -> None:
    groups = rank_groups(config(layers, sequences), layers * sequences * data)
    assert groups.data == data
    assert groups.zero == data * sequences


@given(SIZES, st.integers(1, 8))
def test_deepspeed_multiplies_a_batch_by_the_same_ranks(sequences: int, data: int) -> None:
    world = sequences * data
    assert rank_groups(config(sequences=sequences), world).batch == data_ranks(world, sequences, None)


@pytest.mark.parametrize(("stage", "secondary"), [(2, 1), (3, 4)])
def test_only_stage_3_keeps_a_second_partition(stage: int, secondary: int) -> None:
    zero = {"stage": stage, "zero_hpz_partition_size": 4}
    assert rank_groups({"zero_optimization": zero}, 8).secondary == secondary


@pytest.mark.parametrize("value", ["auto", True, None, "2", 2.5])
def test_what_is_no_number_of_ranks_splits_nothing(value: Any) -> None:
    given = {"tensor_parallel": {"autotp_size": value}, "sequence_parallel_size": value}
    assert not rank_groups(given, 8).are_split
