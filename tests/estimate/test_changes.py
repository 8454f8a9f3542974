from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.asking import SITE, forecast, question, speed
from zlaunch.config.resolve.autos import ACCUMULATION, MICRO, TOTAL
from zlaunch.estimate.changes import (
    ConfigChange,
    effect,
    for_train,
    memory_changes,
    mover,
    speed_changes,
    try_changes,
    worth_saying,
)
from zlaunch.estimate.fit import check_fit, memory_need
from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected, TrainingOptions, workload_of
from zlaunch.job.spec import Device, Offload, parse_offload, parse_override


def pulled(one: EstimateQuery) -> dict[str, ConfigChange]:
    return {lever.words: lever for lever in memory_changes(one, one.settled())}


def answer(told: Forecast, seconds: float | None = None) -> Estimate:
    one = question(stage=2)
    settled = one.settled()
    verdict, pace = check_fit(told, SITE), None if seconds is None else speed(seconds)
    return Estimate(one, settled, workload_of(one, settled), told, memory_need(told, SITE), verdict, pace)


def test_a_smaller_micro_batch_leaves_the_batch_as_it_was() -> None:
    one = question(stage=2, micro=8)
    before, after = one.settled(), pulled(one)["--micro-batch 4 --grad-accum 2"].question.settled()
    assert (after.values[MICRO], after.values[ACCUMULATION]) == (4, 2)
    assert after.values[TOTAL] == before.values[TOTAL]


def test_a_micro_batch_of_one_cannot_be_split() -> None:
    assert not any("--micro-batch" in words for words in pulled(question(stage=2, micro=1)))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_every_lever_leads_to_a_job_that_works(stage: int) -> None:
    for lever in pulled(question(stage=stage)).values():
        assert lever.question.settled()


def test_only_higher_stages_are_levers() -> None:
    assert [words for words in pulled(question(stage=1)) if "--stage" in words] == ["--stage 2", "--stage 3"]


def test_what_is_done_already_is_no_lever() -> None:
    done = question(
        stage=2, offload=Offload("cpu", "none"), options=TrainingOptions(activation_checkpointing=True)
    )
    assert not {"--offload cpu", "--activation-checkpointing"} & set(pulled(done))


@pytest.mark.parametrize("words", ["--offload cpu", "--offload optimizer:cpu"])
def test_the_words_of_an_offload_mean_what_was_tried(words: str) -> None:
    one = question(stage=3)
    tried = pulled(one)[words].question
    typed = replace(one, job=replace(one.job, offload=parse_offload(words.split()[1])))
    assert tried.settled().values.config() == typed.settled().values.config()


def test_the_words_of_a_bucket_mean_what_was_tried() -> None:
    one = question(stage=2, overrides=(("zero_optimization.reduce_bucket_size", 500_000_000),))
    (words,) = [words for words in pulled(one) if words.startswith("--set")]
    key, value = parse_override(words.removeprefix("--set "))
    assert pulled(one)[words].question.settled().values[tuple(key.split("."))] == value


def test_an_effect_is_the_difference_of_two_answers() -> None:
    told = effect("--x", answer(forecast(20), 1.0), answer(forecast(15, pageable=1), 1.3))
    assert (told.gpu, told.host) == (-5 << 30, 8 << 30)
    assert told.pace == pytest.approx(0.3)


EASED = {
    "--offload optimizer:cpu",
    "--offload none",
    "no activation checkpointing",
    "--micro-batch 2",
}


def easy(one: EstimateQuery) -> dict[str, ConfigChange]:
    return {lever.words: lever for lever in speed_changes(one, one.settled())}


def test_everything_that_saves_memory_is_a_lever_the_other_way() -> None:
    options = TrainingOptions(activation_checkpointing=True)
    assert set(easy(question(stage=3, micro=1, offload=Offload("cpu", "cpu"), options=options))) == EASED


def test_what_is_not_done_cannot_be_left_out() -> None:
    assert set(easy(question(stage=0, micro=1))) == {"--micro-batch 2"}


@pytest.mark.parametrize(("stage", "param"), [(1, None), (2, None), (3, None), (3, "cpu"), (3, "nvme")])
def test_every_lever_the_other_way_leads_to_a_job_that_works(stage: int, param: Device | None) -> None:
    nvme = Path("/d") if param == "nvme" else None
    for lever in easy(question(stage=stage, offload=Offload("cpu", param), nvme_dir=nvme)).values():
        assert lever.question.settled()


def test_a_larger_micro_batch_is_accumulated_less_often() -> None:
    (words,) = set(easy(question(stage=2, micro=8))) - {"--stage 1"}
    assert words == "--micro-batch 16"
    (smaller,) = (lever for words, lever in pulled(question(stage=2, micro=8)).items() if "batch 4" in words)
    assert set(easy(smaller.question)) - {"--stage 1"} == {"--micro-batch 8 --grad-accum 1"}


@pytest.mark.parametrize(
    ("size", "seconds", "is_pulled"), [(20, 1.0, True), (20, None, False), (99, 1.0, False)]
)
def test_only_a_job_that_fits_is_made_faster(size: float, seconds: float | None, is_pulled: bool) -> None:
    asked: list[EstimateQuery] = []

    def ask(questions: Sequence[EstimateQuery]) -> list[Estimate | Rejected]:
        asked.extend(questions)
        return [Rejected(one, ()) for one in questions]

    try_changes(answer(forecast(size), seconds), ask)
    assert (1 in {one.job.stage for one in asked}) == is_pulled


def test_of_what_takes_memory_the_three_fastest_are_said() -> None:
    before = answer(forecast(20), 1.0)
    paces = {"a": 0.5, "b": 0.9, "c": 0.3, "slower": 1.2, "d": 0.7}
    effects = [effect(name, before, answer(forecast(30), pace)) for name, pace in paces.items()]
    assert [one.words for one in worth_saying(effects, before.need.allocated)] == ["c", "a", "d"]


def test_what_is_faster_and_does_not_fit_is_left_out() -> None:
    before = answer(forecast(20), 1.0)
    assert worth_saying([effect("x", before, answer(forecast(99), 0.5))], before.need.allocated) == []


def test_what_saves_nothing_is_left_out() -> None:
    before = answer(forecast(20))
    effects = [effect(str(size), before, answer(forecast(size))) for size in (19.9, 15, 5, 25)]
    assert [one.words for one in worth_saying(effects, before.need.allocated)] == ["15", "5"]


def test_a_part_is_moved_by_what_leaves_least_of_it() -> None:
    before = answer(forecast(20))
    effects = [effect(str(size), before, answer(forecast(size))) for size in (15, 5)]
    assert mover("activations", 20 << 30, effects) == ("5", 5 << 30)
    assert mover("gradients", 0, effects) is None


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        ("--stage 3", "--stage 3"),
        ("--activation-checkpointing", "-- --activation_checkpointing"),
        (
            "--micro-batch 2 --grad-accum 4",
            "-- --per_device_train_batch_size 2 --gradient_accumulation_steps 4",
        ),
        (
            "--stage 3 --offload cpu --activation-checkpointing --micro-batch 1",
            "--stage 3 --offload cpu -- --activation_checkpointing --per_device_train_batch_size 1",
        ),
        ("--set a.b=5", "--set a.b=5"),
        ("--lora 16", None),
        ("--stage 2 --seq-len 512", None),
    ],
)
def test_train_takes_its_own_options_first_and_then_the_scripts(words: str, typed: str | None) -> None:
    assert for_train(words) == typed
