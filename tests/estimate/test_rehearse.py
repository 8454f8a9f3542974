"""The program that rehearses: kept between questions, and asked only what nothing else answers."""

import pytest

from tests.asking import forecast
from tests.estimate.test_rehearsal import workload
from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.rehearse import Rehearser
from zlaunch.estimate.workload import Workload

pytestmark = pytest.mark.job


class Remembers:
    """A cache that knows one forecast, and is told of others."""

    def __init__(self, known: Workload, told: Forecast) -> None:
        self.known = {repr(known): told}

    def find(self, asked: Workload) -> Forecast | None:
        return self.known.get(repr(asked))

    def keep(self, asked: Workload, told: Forecast) -> None:
        self.known[repr(asked)] = told


def program_of(rehearser: Rehearser) -> object:
    return rehearser._program


def test_one_program_answers_question_after_question_and_what_is_known_at_once() -> None:
    known, *others = (workload(stage) for stage in range(4))
    told = forecast(1.0)
    cache = Remembers(known, told)
    progress: list[tuple[int, int]] = []
    with Rehearser(cache) as rehearser:
        assert rehearser([known]) == [told]
        assert program_of(rehearser) is None
        first = rehearser([others[0], known], lambda *far: progress.append(far))
        program = program_of(rehearser)
        second = rehearser(others[1:])
        assert program_of(rehearser) is program is not None
    told_since = [one for one in (*first, *second) if isinstance(one, Forecast)]
    assert [one.method for one in told_since] == ["rehearsal"] * 4
    assert first[1] == told
    assert progress == [(1, 2), (2, 2)]
    assert [cache.find(one) for one in others] == [first[0], *second]


def test_a_program_that_dies_leaves_the_closed_form_and_the_next_question_starts_another() -> None:
    with Rehearser() as rehearser:
        rehearser([workload(0)])
        assert rehearser._program is not None
        rehearser._program._process.kill()
        (told,), (again,) = rehearser([workload(1)]), rehearser([workload(1)])
    assert isinstance(told, Forecast)
    assert told.why_not_rehearsed == "the rehearsal's program died"
    assert isinstance(again, Forecast)
    assert again.method == "rehearsal"
