from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.estimate.memory.jobs import job
from zlaunch.dsconfig.batch import RankGroups
from zlaunch.estimate.memory.gradients import Gradients
from zlaunch.estimate.memory.settings import Settings, read_settings
from zlaunch.estimate.memory.weights import Weights

CPU = {"device": "cpu"}
WEIGHTS = Weights(510, embedding=(300,), layers=((40, 40, 20), (40, 40, 20)), head=(10,))


def settings(stage: int, **zero: Any) -> Settings:
    return read_settings(job("gpt2", stage, world_size=4, reduce_bucket_size=100, **zero))


def flow(stage: int, **zero: Any) -> Gradients:
    return Gradients(settings(stage, **zero), WEIGHTS)


def test_stage_0_keeps_every_gradient() -> None:
    gradients = flow(0)
    assert [gradients.arrive(n) for n in (10, 20)] == [0, 0]
    assert (gradients.held, gradients.buckets) == (60, 0)


def test_stage_1_keeps_every_gradient_beside_the_bucket() -> None:
    gradients = flow(1)
    gradients.arrive(10)
    assert (gradients.held, gradients.buckets) == (20, 200)


def test_stage_2_has_a_gradient_twice_only_while_it_is_copied() -> None:
    gradients = flow(2)
    assert [gradients.arrive(n) for n in (10, 20)] == [20, 40]
    assert (gradients.held, gradients.buckets) == (0, 200)


def test_overlap_takes_a_second_bucket() -> None:
    gradients = flow(2, overlap_comm=True)
    gradients.arrive(10)
    assert gradients.buckets == 400


def test_stage_1_with_overlap_keeps_what_is_larger_than_a_bucket() -> None:
    gradients = flow(1, overlap_comm=True)
    assert not gradients.waits
    gradients.arrive(10)
    gradients.arrive(300)
    assert gradients.larger == 2 * 300


def test_stage_1_keeps_the_gradients_of_an_accumulated_step_with_overlap_too() -> None:
    once = settings(1, overlap_comm=True)
    assert Gradients(replace(once, accumulation=2), WEIGHTS).waits


def test_stage_3_computes_norms_in_fp64_beside_its_parts_if_the_optimizer_is_offloaded() -> None:
    gradients = flow(3, offload_optimizer=CPU)
    gradients.arrive(10)
    gradients.arrive(40)
    assert gradients.flush() == 2 * 13 + 8 * 10  # a fourth of 50, and of the largest


def test_a_full_bucket_that_belongs_to_one_rank_is_reduced_where_it_is() -> None:
    gradients = flow(2)
    for numel in (10, 20, 40):
        gradients.arrive(numel)
    assert gradients.arrive(40) == 2 * 40  # 440 to 510, of which the last rank has everything


def test_a_full_bucket_that_two_ranks_share_is_flattened() -> None:
    gradients = flow(2)
    for numel in (10, 20, 40, 40, 20, 40):
        gradients.arrive(numel)
    assert gradients.arrive(40) == 2 * 40 + 2 * 100  # 340 to 440; the last rank's share begins at 384


def test_what_the_rank_keeps_is_there_from_its_first_bucket_on() -> None:
    gradients = flow(2)
    for numel in (10, 20, 40, 40, 20, 40, 40):
        gradients.arrive(numel)
    assert gradients.held == 0
    gradients.arrive(300)
    assert gradients.held == 2 * 300


def test_a_parameter_across_two_shares_is_kept_whole_by_both() -> None:
    assert [WEIGHTS.owned(128, rank) for rank in range(4)] == [300, 300, 300 + 100, 20 + 100 + 10]


def test_under_offload_norms_are_computed_in_fp64() -> None:
    gradients = flow(2, offload_optimizer=CPU)
    for numel in (10, 20, 40, 40, 20, 40, 40):
        gradients.arrive(numel)
    assert gradients.arrive(300) == 2 * 300 + 8 * 128
    assert gradients.held == 0


def test_stage_3_flattens_whatever_is_full() -> None:
    gradients = flow(3)
    for numel in (40, 40):
        gradients.arrive(numel)
    assert gradients.arrive(40) == 2 * (80 + 40)
    assert (gradients.held, gradients.buckets) == (0, 0)


def test_at_the_end_of_stage_1_gradients_move_into_the_bucket() -> None:
    gradients = Gradients(settings(1), Weights(410, (40, 40), ((300,),), (30,)))
    # When the 300 are flattened, the rank's own 380 have a buffer, and 80 have left for the bucket.
    assert gradients.reduce_all() == 2 * (300 + 380 - 80)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=40), st.integers(1, 9), st.integers(1, 500))
def test_every_parameter_is_owned_by_someone(numels: list[int], ranks: int, bucket: int) -> None:
    weights = Weights(sum(numels), (), (tuple(numels),), ())
    share = -(-weights.total // ranks)
    owned = [weights.owned(share, rank) for rank in range(ranks)]
    assert sum(owned) >= weights.total
    assert all(part >= min(share, weights.total - share * rank) for rank, part in enumerate(owned))


@given(st.sampled_from([2, 3]), st.lists(st.integers(1, 400), min_size=1, max_size=40))
def test_a_moment_never_takes_more_than_a_bucket_and_two_gradients(stage: int, numels: list[int]) -> None:
    read = replace(settings(stage), groups=RankGroups(2))
    gradients = Gradients(read, Weights(sum(numels), (), (tuple(numels),), ()))
    moments = [gradients.arrive(numel) for numel in numels]
    assert all(0 <= moment <= 2 * (100 + 2 * n) for moment, n in zip(moments, numels, strict=True))


@pytest.mark.parametrize("stage", [2, 3])
def test_nothing_is_left_when_the_last_is_reduced(stage: int) -> None:
    gradients = flow(stage)
    for numel in reversed(WEIGHTS.trained):
        gradients.arrive(numel)
    gradients.flush()
    assert gradients.flush() == 0
