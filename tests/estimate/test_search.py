"""The search, over a made-up GPU whose memory and speed are simple sums."""

from collections.abc import Callable, Sequence

import pytest

from tests.asking import Ask, MadeUp, answer, forecast, question
from zlaunch.config.resolve.autos import MICRO
from zlaunch.dsconfig.batch import RankGroups
from zlaunch.errors import Finding, Refused, WrongUsage
from zlaunch.estimate.candidates import Candidate, candidates
from zlaunch.estimate.changes import BUCKET, SMALL_BUCKET, Options
from zlaunch.estimate.effects import find_remedies
from zlaunch.estimate.fit import Fit
from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected, is_fit
from zlaunch.estimate.search import MOST_MISSES, NothingFits, SearchResult, _Search, search, shared_batch
from zlaunch.estimate.strategies import STRATEGIES, available

STATES = {0: 60.0, 1: 30.0, 2: 20.0, 3: 10.0}


def made_up(states: Callable[[int, bool], float], per_sequence: float, error: float = 0.0) -> Ask:
    """Answer with a sum: states by stage, and so many GiB for each sequence, less if checkpointed."""

    def ask(questions: Sequence[EstimateQuery]) -> list[Estimate | Rejected]:
        return [_answer(one) for one in questions]

    def _answer(one: EstimateQuery) -> Estimate:
        resolved = one.resolve()
        zero = resolved.config.zero_optimization
        checkpointing = one.training.activation_checkpointing
        micro = resolved.values[MICRO]
        stage = zero.stage if isinstance(zero.stage, int) else 0
        size = states(stage, bool(zero.offloads)) + micro * per_sequence * (0.1 if checkpointing else 1)
        seconds = (
            (1.3 if checkpointing else 1.0) + (5.0 if zero.offloads else 0.0) + (0.5 if stage == 3 else 0)
        )
        return answer(one, forecast(size, error=error), seconds)

    return ask


def roomy(stage: int, offloaded: bool) -> float:
    return 1.0 if offloaded else STATES[stage]


def asked(made: MadeUp) -> list[tuple[int | None, str | None, bool, int]]:
    return [_settings(one) for queries in made.rounds for one in queries]


def _settings(one: EstimateQuery) -> tuple[int | None, str | None, bool, int]:
    job = one.job
    offload = None if job.offload is None or job.offload.optimizer == "none" else str(job.offload)
    return (
        job.stage,
        offload,
        one.training.activation_checkpointing,
        int(one.given.args["per_device_train_batch_size"].value),
    )


def buckets(made: MadeUp) -> list[object]:
    """List the buckets that were rehearsed of stages that reduce in buckets."""
    return [
        dict(one.job.overrides).get(BUCKET) for queries in made.rounds for one in queries if one.job.stage
    ]


def choice(found: SearchResult | NothingFits) -> Candidate:
    assert isinstance(found, SearchResult)
    return found.candidate


def test_what_trains_without_zero_does_not_use_it() -> None:
    one = choice(search(question(), 8, MadeUp(made_up(lambda *_: 1.0, 0.1))))
    assert (str(one.strategy.options), one.micro_batch) == ("--stage 0", 8)


def test_stage_2_comes_before_stage_3_and_offloading_last() -> None:
    ask = made_up(lambda stage, offloaded: 1.0 if offloaded else {2: 70.0, 3: 60.0}.get(stage, 99.0), 0.1)
    assert str(choice(search(question(), 8, MadeUp(ask))).strategy.options) == "--stage 2"


def test_a_smaller_micro_batch_is_accumulated_to_the_same_batch() -> None:
    one = choice(search(question(), 12, MadeUp(made_up(roomy, 10.0))))
    assert one.micro_batch * one.accumulation == 12
    assert not one.checkpointing


def test_what_the_rehearsal_refutes_gives_way_to_a_smaller_batch_of_the_same_strategy() -> None:
    found = search(question(), 8, MadeUp(made_up(lambda *_: 1.0, 4.0), made_up(lambda *_: 1.0, 12.0)))
    assert isinstance(found, SearchResult)
    assert str(found.candidate.options) == "--stage 0 --micro-batch 4"
    assert [one.micro_batch for one, answer in found.tried if not is_fit(answer)] == [8]


def test_what_is_likely_to_fit_and_what_surely_does_are_rehearsed_together() -> None:
    made = MadeUp(made_up(lambda *_: 1.0, 8.7, error=0.1), made_up(lambda *_: 1.0, 12.0))
    search(question(), 8, made)
    assert len(made.rounds[0]) == 2


def test_what_was_rehearsed_beside_others_is_rehearsed_alone_before_it_is_chosen() -> None:
    made = MadeUp(made_up(lambda *_: 1.0, 9.2, error=0.1), made_up(lambda *_: 1.0, 12.0))
    found = search(question(), 8, made)
    assert [_settings(one) for one in made.rounds[-1]] == [_settings(choice(found).query)]


def test_what_all_ranks_need_corrects_what_was_expected_of_the_neighbours() -> None:
    made = MadeUp(made_up(lambda *_: 1.0, 1.0))
    listed = candidates(question(), 8)
    told = _Search(listed, made.closed_form([one.query for one in listed]), made)
    told._rehearse([0])
    before = told._expect(1).need.allocated
    made.truth = made_up(lambda *_: 2.0, 2.0)
    told._rehearse([0])
    assert told._expect(1).need.allocated == 2 * before


def test_where_fitting_is_unlikely_the_smallest_bucket_is_rehearsed_first_and_refutes_the_larger() -> None:
    made = MadeUp(made_up(lambda *_: 73.0, 0.0))
    search(question(options=Options(activation_checkpointing=True)), 1, made)
    assert len(buckets(made)) == len(available(question().job)) - 1
    assert SMALL_BUCKET not in buckets(made)


def test_a_smaller_bucket_that_saves_too_little_by_its_neighbour_is_not_rehearsed() -> None:
    made = MadeUp(
        made_up(lambda *_: 60.0, 0.0), made_up(lambda _, offloaded: 1.0 if offloaded else 75.0, 0.0)
    )
    one = choice(search(question(options=Options(activation_checkpointing=True)), 1, made))
    assert str(one.strategy.options) == "--stage 2 --offload cpu"
    assert set(buckets(made)) == {SMALL_BUCKET}


@pytest.mark.parametrize("guess", [500.0, 1.0], ids=["without hope", "hoping in vain"])
def test_nothing_fits_only_after_every_strategy_was_tried_at_its_smallest(guess: float) -> None:
    made = MadeUp(made_up(lambda *_: guess, 1.0), made_up(lambda *_: 500.0, 1.0))
    found = search(question(), 8, made)
    assert isinstance(found, NothingFits)
    assert found.fit is Fit.NO
    smallest = [settings for settings in asked(made) if settings[2:] == (True, 1)]
    assert (
        len({settings[:2] for settings in smallest}) == len(available(question().job)) == len(found.smallest)
    )
    assert len(asked(made)) <= MOST_MISSES + 1 + len(smallest)


def test_what_the_closed_form_excludes_wrongly_is_found_all_the_same() -> None:
    found = search(question(), 8, MadeUp(made_up(lambda *_: 500.0, 1.0), made_up(roomy, 10.0)))
    assert str(choice(found).options) == "--stage 0 --micro-batch 1"


def test_where_the_smallest_is_too_close_to_tell_it_is_not_said_that_nothing_fits() -> None:
    found = search(question(), 1, MadeUp(made_up(lambda *_: 77.0, 0.0)))
    assert isinstance(found, NothingFits)
    assert found.fit is Fit.TIGHT


def test_a_job_that_works_on_no_strategy_is_refused_with_the_reason() -> None:
    def ask(questions: Sequence[EstimateQuery]) -> list[Estimate | Rejected]:
        return [Rejected(Refused([Finding("no-heads", "why not")])) for one in questions]

    for made in (MadeUp(ask), MadeUp(made_up(lambda *_: 1.0, 0.1), ask)):
        with pytest.raises(Refused) as refused:
            search(question(), 8, made)
        assert [one.message for one in refused.value.findings] == ["why not"]


def test_what_lets_a_job_fit_is_named_with_its_lowest_strategy() -> None:
    ask = made_up(roomy, 30.0)
    first, *_ = find_remedies(question(micro=8), STRATEGIES, MadeUp(ask))
    assert str(first) == "--stage 0 --activation-checkpointing --micro-batch 1 --grad-accum 8"


def test_checkpointing_goes_with_a_smaller_batch_where_neither_is_enough() -> None:
    ask = made_up(lambda *_: 1.0, 500.0)
    found = [str(one) for one in find_remedies(question(micro=8), STRATEGIES, MadeUp(ask))]
    assert found == ["--stage 0 --activation-checkpointing --micro-batch 1 --grad-accum 8"]


def test_no_change_is_named_where_none_helps() -> None:
    ask = made_up(lambda *_: 1000.0, 0.0)
    assert find_remedies(question(), STRATEGIES, MadeUp(ask)) == []


def test_what_a_rehearsal_does_not_confirm_is_not_named() -> None:
    hopeful, sober = made_up(lambda *_: 1.0, 20.0), made_up(lambda *_: 1000.0, 0.0)
    assert find_remedies(question(micro=8), STRATEGIES, MadeUp(hopeful)) != []
    assert find_remedies(question(micro=8), STRATEGIES, MadeUp(hopeful, sober)) == []


def test_a_strategy_that_is_refused_is_told_apart_from_one_that_cannot_fit() -> None:
    def refusing(truth: Ask) -> Ask:
        def ask(questions: Sequence[EstimateQuery]) -> list[Estimate | Rejected]:
            hindered = (Finding("no-heads", "why not"),)
            return [
                Rejected(Refused(hindered)) if one.job.stage == 1 else told
                for one, told in zip(questions, truth(questions), strict=True)
            ]

        return ask

    large, small = made_up(lambda *_: 500.0, 1.0), made_up(lambda stage, _: {3: 1.0}.get(stage, 500.0), 0.1)
    nothing = search(question(), 8, MadeUp(refusing(large)))
    assert isinstance(nothing, NothingFits)
    assert [str(strategy.options) for strategy, _ in nothing.refused] == ["--stage 1"]
    late = search(question(), 8, MadeUp(large, refusing(large)))
    assert isinstance(late, NothingFits)
    assert [str(strategy.options) for strategy, _ in late.refused] == ["--stage 1"]
    found = search(question(), 8, MadeUp(refusing(small)))
    assert isinstance(found, SearchResult)
    assert "--stage 0" in [str(strategy.options) for strategy in found.hopeless]
    assert "--stage 1" not in [str(strategy.options) for strategy in found.hopeless]


@pytest.mark.parametrize(("batch", "next_one"), [(3, 8), (12, 16)])
def test_a_batch_that_the_ranks_cannot_share_is_answered_with_the_next_one_that_they_can(
    batch: int, next_one: int
) -> None:
    with pytest.raises(WrongUsage) as raised:
        shared_batch(batch, RankGroups(8))
    assert raised.value.hint == f"`--global-batch {next_one}` can"
    assert shared_batch(next_one, RankGroups(8)) == next_one // 8
