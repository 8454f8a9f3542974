"""The search, over a made-up GPU whose memory and speed are simple sums."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.asking import SITE, forecast, question, speed
from zlaunch.answers import Answer, Refusal
from zlaunch.errors import Finding, Refused
from zlaunch.fit import judge, need_of
from zlaunch.ladder import LADDER
from zlaunch.resolve import MICRO
from zlaunch.search import MOST_ROUNDS, Ask, divisors, remedies, search
from zlaunch.workloads import Question, workload_of

STATES = {0: 60.0, 1: 30.0, 2: 20.0, 3: 10.0}


def made_up(states: Callable[[int, bool], float], per_sequence: float) -> Ask:
    """Answer with a sum: states by stage, and so many GiB for each sequence, less if checkpointed."""

    def ask(questions: Sequence[Question]) -> list[Answer | Refusal]:
        return [_answer(one) for one in questions]

    def _answer(one: Question) -> Answer:
        settled = one.settled()
        zero = settled.config.zero_optimization
        checkpointing = one.training.activation_checkpointing
        micro = settled.values[MICRO]
        stage = zero.stage if isinstance(zero.stage, int) else 0
        size = states(stage, bool(zero.offloads)) + micro * per_sequence * (0.1 if checkpointing else 1)
        seconds = (
            (1.3 if checkpointing else 1.0) + (5.0 if zero.offloads else 0.0) + (0.5 if stage == 3 else 0)
        )
        told = forecast(size)
        verdict = judge(told, SITE)
        return Answer(
            one, settled, workload_of(one, settled), told, need_of(told, SITE), verdict, speed(seconds)
        )

    return ask


def roomy(stage: int, offloaded: bool) -> float:
    return 1.0 if offloaded else STATES[stage]


def test_what_trains_without_zero_does_not_use_it() -> None:
    ask = made_up(lambda *_: 1.0, 0.1)
    found = search(question(), 8, ask, ask)
    assert found is not None
    assert (found.candidate.rung.words, found.candidate.micro_batch) == ("--stage 0", 8)


def test_stage_2_comes_before_stage_3_and_offloading_last() -> None:
    ask = made_up(lambda stage, offloaded: 1.0 if offloaded else {2: 70.0, 3: 60.0}.get(stage, 99.0), 0.1)
    found = search(question(), 8, ask, ask)
    assert found is not None
    assert found.candidate.rung.words == "--stage 2"


def test_a_smaller_micro_batch_is_accumulated_to_the_same_batch() -> None:
    ask = made_up(roomy, 10.0)
    found = search(question(), 12, ask, ask)
    assert found is not None
    assert found.candidate.micro_batch * found.candidate.accumulation == 12
    assert not found.candidate.checkpointing


def test_what_the_rehearsal_refutes_gives_way_to_the_next() -> None:
    found = search(question(), 8, made_up(lambda *_: 1.0, 4.0), made_up(lambda *_: 1.0, 12.0))
    assert found is not None
    assert found.candidate.checkpointing
    assert [candidate.micro_batch for candidate, _ in found.rejected[:1]] == [8]


def test_what_may_fit_and_what_surely_does_are_rehearsed_together() -> None:
    asked: list[int] = []
    truth = made_up(lambda *_: 1.0, 12.0)

    def rehearse(questions: Sequence[Question]) -> Sequence[Answer | Refusal]:
        asked.append(len(questions))
        return truth(questions)

    found = search(question(), 8, made_up(lambda *_: 1.0, 9.6), rehearse)
    assert found is not None
    assert (found.candidate.micro_batch, asked) == (4, [2])


def test_nothing_is_found_where_nothing_fits() -> None:
    ask = made_up(lambda *_: 500.0, 1.0)
    assert search(question(), 8, ask, ask) is None


def test_a_job_that_works_on_no_rung_is_refused_with_the_reason() -> None:
    def ask(questions: Sequence[Question]) -> list[Answer | Refusal]:
        return [Refusal(one, (Finding("no-heads", "why not"),)) for one in questions]

    with pytest.raises(Refused) as refused:
        search(question(), 8, ask, ask)
    assert [one.message for one in refused.value.findings] == ["why not"]


def test_patience_has_an_end() -> None:
    asked: list[Question] = []
    wrong = made_up(lambda *_: 500.0, 1.0)

    def rehearse(questions: Sequence[Question]) -> Sequence[Answer | Refusal]:
        asked.extend(questions)
        return wrong(questions)

    assert search(question(), 64, made_up(lambda *_: 1.0, 0.1), rehearse) is None
    assert len(asked) <= 2 * MOST_ROUNDS


@pytest.mark.parametrize(("number", "sizes"), [(1, [1]), (12, [1, 2, 3, 4, 6, 12]), (7, [1, 7])])
def test_a_batch_is_cut_into_equal_pieces(number: int, sizes: list[int]) -> None:
    assert divisors(number) == sizes


@given(st.integers(1, 10**6))
def test_every_size_divides_the_batch(number: int) -> None:
    sizes = divisors(number)
    assert sizes[0] == 1
    assert sizes[-1] == number
    assert all(number % size == 0 for size in sizes)


def test_what_lets_a_job_fit_is_named_with_its_lowest_rung() -> None:
    ask = made_up(roomy, 40.0)
    first, *_ = remedies(question(micro=8), LADDER, ask, ask)
    assert first.words == "--stage 0 --activation-checkpointing --micro-batch 4 --grad-accum 2"


def test_checkpointing_goes_with_a_smaller_batch_where_neither_is_enough() -> None:
    ask = made_up(lambda *_: 1.0, 500.0)
    found = [one.words for one in remedies(question(micro=8), LADDER, ask, ask)]
    assert found == ["--stage 0 --activation-checkpointing --micro-batch 1 --grad-accum 8"]


def test_no_change_is_named_where_none_helps() -> None:
    ask = made_up(lambda *_: 1000.0, 0.0)
    assert remedies(question(), LADDER, ask, ask) == []


def test_what_a_rehearsal_does_not_confirm_is_not_named() -> None:
    hopeful, sober = made_up(lambda *_: 1.0, 20.0), made_up(lambda *_: 1000.0, 0.0)
    assert remedies(question(micro=8), LADDER, hopeful, hopeful) != []
    assert remedies(question(micro=8), LADDER, hopeful, sober) == []
