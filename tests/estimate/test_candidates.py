from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.asking import question
from zlaunch.estimate.candidates import STEP, candidates, sizes
from zlaunch.estimate.changes import BUCKET, Options
from zlaunch.estimate.strategies import available


@pytest.mark.parametrize(
    ("number", "expected"), [(1, [1]), (12, [1, 2, 3, 6, 12]), (7, [1, 7]), (8, [1, 2, 4, 8])]
)
def test_a_batch_is_cut_into_equal_pieces(number: int, expected: list[int]) -> None:
    assert sizes(number) == expected


@given(st.integers(1, 10**6))
def test_every_size_divides_the_batch_and_none_is_much_like_another(number: int) -> None:
    found = sizes(number)
    assert (found[0], found[-1]) == (1, number)
    assert all(number % size == 0 for size in found)
    assert all(larger >= STEP * smaller for smaller, larger in pairwise(found))


def test_every_candidate_trains_with_the_same_batch_and_can_be_resolved() -> None:
    for one in candidates(question(), 6):
        assert one.micro_batch * one.accumulation == 6
        assert one.query.resolve()


def test_every_strategy_is_tried_with_and_without_checkpointing() -> None:
    listed = candidates(question(), 4)
    found = {(one.strategy, one.checkpointing) for one in listed}
    assert found == {(strategy, again) for strategy in available(question().job) for again in (False, True)}


def test_what_is_checkpointed_already_stays_so() -> None:
    asked = question(options=Options(activation_checkpointing=True))
    assert all(one.checkpointing for one in candidates(asked, 2))


def test_a_bucket_that_the_user_said_is_not_searched_for() -> None:
    asked = question(overrides=((BUCKET, 7),))
    for one in candidates(asked, 2):
        assert one.query.resolve().values.config()["zero_optimization"]["reduce_bucket_size"] == 7


def test_buckets_are_one_for_speed_and_one_for_memory() -> None:
    listed = candidates(question(), 1)
    assert {one.bucket for one in listed if one.strategy.stage} == {50_000_000, 256 * 256}
    assert {one.bucket for one in listed if not one.strategy.stage} == {0}


def test_less_is_never_said_to_need_more() -> None:
    listed = candidates(question(), 4)
    for one in listed:
        for other in listed:
            if one.needs_more_than(other) and other.needs_more_than(one):
                assert one == other


def test_checkpointing_needs_less() -> None:
    listed = candidates(question(), 4)
    for one in listed:
        if not one.checkpointing:
            (again,) = [
                other for other in listed if other == replace(one, checkpointing=True, query=other.query)
            ]
            assert one.needs_more_than(again)
            assert not again.needs_more_than(one)
