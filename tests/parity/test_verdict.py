"""Which differences rounding explains."""

import math
from dataclasses import replace

import pytest

from zlaunch.errors import ExitStatus
from zlaunch.job.spec import Precision
from zlaunch.parity.verdict import Distance, ParityAnswer, Quantity, allowed, judge


def distance(apart: float, rounding: float = 0.0, quantity: Quantity = "gradient", step: int = 1) -> Distance:
    return Distance(quantity, step, apart, rounding, "weight")


@pytest.mark.parametrize(("precision", "bits"), [("bf16", 8), ("fp16", 11)])
def test_the_floor_of_a_format_is_the_rounding_of_four_additions(precision: Precision, bits: int) -> None:
    assert allowed(distance(0), precision) == 4 * 2.0 ** -(bits + 1)


def test_a_gradient_may_differ_four_times_as_much_as_that_of_torch_in_another_precision() -> None:
    assert allowed(distance(0, rounding=0.01), "bf16") == 0.04


def test_an_update_from_the_same_gradients_has_the_floor_of_fp32_in_any_precision() -> None:
    assert allowed(distance(0, quantity="update"), "bf16") == 1e-5


def test_weights_that_are_not_the_master_weights_differ_in_any_bit() -> None:
    assert judge([distance(1e-9, quantity="weights")], "bf16").answer is ParityAnswer.DIFFERS


def test_a_difference_is_told_at_the_first_step_that_has_one() -> None:
    found = judge([distance(0.5, step=3), distance(0.4, step=2), distance(0.0, step=1)], "fp32")
    assert [item.distance.step for item in found.differing] == [2]


def test_a_gradient_that_is_not_a_number_differs() -> None:
    assert judge([distance(math.nan)], "fp32").answer is ParityAnswer.DIFFERS


def test_nothing_is_told_of_a_parameter_that_is_mostly_rounding() -> None:
    told = [distance(0, quantity="update"), distance(0, quantity="momentum")]
    found = judge([distance(0.9, rounding=0.5), *told], "fp32")
    assert (found.answer, found.untold) == (ParityAnswer.SAME, ("gradient of weight",))


def test_a_parameter_of_which_one_step_tells_is_told() -> None:
    assert judge([distance(0.9, rounding=0.5), distance(0, step=2)], "fp32").untold == ()


def test_where_summands_cancel_the_floor_is_that_of_the_summands() -> None:
    assert allowed(replace(distance(0), cancels=8.0), "bf16") == 8 * 2.0**-7


def test_nothing_is_told_where_most_numbers_are_rounding() -> None:
    assert judge([distance(0.9, rounding=0.5)], "fp32").answer is ParityAnswer.CANNOT_TELL


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (ParityAnswer.SAME, ExitStatus.OK),
        (ParityAnswer.DIFFERS, ExitStatus.REFUSED),
        (ParityAnswer.CANNOT_TELL, ExitStatus.UNAVAILABLE),
    ],
)
def test_an_answer_has_an_exit_status(answer: ParityAnswer, status: ExitStatus) -> None:
    assert answer.status is status
