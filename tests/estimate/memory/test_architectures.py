import pytest

from tests.each import each
from tests.estimate.memory.architectures import HELD_OUT, SET, SETTINGS, Cell, cells, job, recorded
from tests.estimate.memory.record_architectures import PAGE, page
from tests.estimate.rehearsing import rehearse
from zlaunch.estimate.memory.closed_form import KNOWN_ERROR, UNKNOWN_ERROR

CLAIMS = {True: KNOWN_ERROR, False: UNKNOWN_ERROR}


def worst(known: bool, names: tuple[str, ...]) -> float:
    return max(one.factor for one in cells() if one.architecture in names and is_known(one) is known) - 1


def is_known(cell: Cell) -> bool:
    return cell.found.error == KNOWN_ERROR


def test_thirty_architectures_were_rehearsed_under_three_settings_and_more() -> None:
    assert {*recorded()} == {*SET, *HELD_OUT}
    rehearsed = [sum(one.architecture == name for one in cells()) for name in (*SET, *HELD_OUT)]
    assert sum(number >= 3 for number in rehearsed) >= 50
    assert {one.setting for one in cells()} == {*SETTINGS}
    assert not {*SET} & {*HELD_OUT}


@each("cell", cells, ids=lambda one: f"{one.architecture}, {one.setting}")
def test_a_rehearsal_lies_within_what_the_closed_form_claims(cell: Cell) -> None:
    assert cell.is_true, f"{cell.off:+.1%}"


@pytest.mark.parametrize("known", [True, False])
def test_a_claim_is_half_as_wide_again_as_the_worst_of_what_it_was_set_on(known: bool) -> None:
    assert 1.5 * worst(known, SET) <= CLAIMS[known]
    assert CLAIMS[known] <= 2 * worst(known, SET)


@pytest.mark.parametrize("known", [True, False])
def test_a_claim_holds_for_architectures_that_it_was_not_set_on(known: bool) -> None:
    assert worst(known, HELD_OUT) <= CLAIMS[known]


def test_the_page_of_docs_says_what_the_closed_form_says_now() -> None:
    assert PAGE.read_text() == page(), "python -m tests.estimate.memory.record_architectures --docs"


@pytest.mark.job
def test_a_rehearsal_still_says_what_was_recorded_of_architectures() -> None:
    asked = [("mixtral", "stage 3"), ("falcon", "stage 3"), ("t5", "stage 2"), ("bert", "stage 3")]
    found = rehearse([job(recorded()[name]["config"], setting) for name, setting in asked])
    known = [recorded()[name]["peaks"][setting] for name, setting in asked]
    assert [one.peak("gpu") for one in found] == [pytest.approx(peak, rel=0.01) for peak in known]
