from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.asking import MadeUp, answer, forecast, question
from zlaunch.config.resolve.autos import ACCUMULATION, MICRO, TOTAL
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.errors import Refused
from zlaunch.estimate.changes import Options, memory_changes, speed_changes
from zlaunch.estimate.effects import effect, most_reduced, state_of, try_changes, worth_saying
from zlaunch.estimate.forecast import Phase
from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected
from zlaunch.estimate.workload import Lora
from zlaunch.job.spec import Device, Offload, parse_offload, parse_override


def saving(one: EstimateQuery) -> dict[str, EstimateQuery]:
    """What to type for each change that saves memory → the job after it."""
    listed = (options for _, options in memory_changes(state_of(one, one.resolve())))
    return {str(options): one.with_options(options) for options in listed}


def easing(one: EstimateQuery) -> dict[str, EstimateQuery]:
    """The same for the changes that use more memory."""
    return {
        str(options): one.with_options(options) for _, options in speed_changes(state_of(one, one.resolve()))
    }


def named(text: str) -> Options:
    """Options that read like a text."""
    return Options(overrides=((text, 0),))


def names(options: Sequence[Options]) -> list[str]:
    return [one.overrides[0][0] for one in options]


def test_a_smaller_micro_batch_leaves_the_batch_as_it_was() -> None:
    one = question(stage=2, micro=8)
    before, after = one.resolve(), saving(one)["--micro-batch 4 --grad-accum 2"].resolve()
    assert (after.values[MICRO], after.values[ACCUMULATION]) == (4, 2)
    assert after.values[TOTAL] == before.values[TOTAL]


def test_a_micro_batch_of_one_cannot_be_split() -> None:
    assert not any("--micro-batch" in words for words in saving(question(stage=2, micro=1)))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_every_change_leads_to_a_job_that_works(stage: int) -> None:
    for changed in saving(question(stage=stage)).values():
        assert changed.resolve()


def test_only_higher_stages_save_memory() -> None:
    assert [words for words in saving(question(stage=1)) if "--stage" in words] == ["--stage 2", "--stage 3"]


def test_what_is_done_already_is_no_change() -> None:
    done = question(stage=2, offload=Offload("cpu", "none"), options=Options(activation_checkpointing=True))
    assert not {"--offload cpu", "--activation-checkpointing"} & set(saving(done))


@pytest.mark.parametrize(("stage", "words"), [(0, "--stage 2 --offload cpu"), (2, "--offload cpu")])
def test_an_offload_raises_the_stage_only_if_it_must(stage: int, words: str) -> None:
    zero = saving(question(stage=stage))[words].resolve().config.zero_optimization
    assert (zero.stage, list(zero.offloads)) == (2, ["offload_optimizer"])


def test_parameters_go_to_the_host_at_stage_3_once_the_optimizer_is_there() -> None:
    offloaded = saving(question(stage=2, offload=Offload("cpu", "none")))
    zero = offloaded["--stage 3 --offload cpu"].resolve().config.zero_optimization
    assert (zero.stage, sorted(zero.offloads)) == (3, ["offload_optimizer", "offload_param"])


def test_an_offload_of_the_optimizer_leaves_parameters_on_the_host() -> None:
    offloaded = saving(question(stage=3, offload=Offload("none", "cpu")))
    assert [words for words in offloaded if "--offload" in words] == ["--offload cpu"]


@pytest.mark.parametrize("words", ["--offload cpu", "--offload optimizer:cpu"])
def test_the_words_of_an_offload_mean_what_was_tried(words: str) -> None:
    one = question(stage=3)
    typed = one.with_options(Options(offload=parse_offload(words.split()[1])))
    assert saving(one)[words].resolve().values.config() == typed.resolve().values.config()


def test_the_words_of_a_bucket_mean_what_was_tried() -> None:
    one = question(stage=2, overrides=((f"{ZERO}.reduce_bucket_size", 500_000_000),))
    (words,) = [words for words in saving(one) if words.startswith("--set")]
    key, value = parse_override(words.removeprefix("--set "))
    assert saving(one)[words].resolve().values[tuple(key.split("."))] == value


def test_an_effect_is_the_difference_of_two_estimates() -> None:
    one = question(stage=2)
    told = effect(named("x"), answer(one, forecast(20), 1.0), answer(one, forecast(15, pageable=1), 1.3))
    assert (told.gpu, told.host) == (-5 << 30, 8 << 30)
    assert told.pace == pytest.approx(0.3)


EASED = {
    "--offload optimizer:cpu",
    "--offload none",
    "no activation checkpointing",
    "--micro-batch 2",
}


def test_everything_that_saves_memory_can_be_undone() -> None:
    options = Options(activation_checkpointing=True)
    assert set(easing(question(stage=3, micro=1, offload=Offload("cpu", "cpu"), options=options))) == EASED


def test_what_is_not_done_cannot_be_left_out() -> None:
    assert set(easing(question(stage=0, micro=1))) == {"--micro-batch 2"}


@pytest.mark.parametrize(("stage", "param"), [(1, None), (2, None), (3, None), (3, "cpu"), (3, "nvme")])
def test_every_change_that_uses_more_memory_leads_to_a_job_that_works(
    stage: int, param: Device | None
) -> None:
    nvme = Path("/d") if param == "nvme" else None
    for changed in easing(question(stage=stage, offload=Offload("cpu", param), nvme_dir=nvme)).values():
        assert changed.resolve()


def test_a_larger_micro_batch_is_accumulated_less_often() -> None:
    one = question(stage=2, micro=8)
    assert set(easing(one)) - {"--stage 1"} == {"--micro-batch 16"}
    smaller = saving(one)["--micro-batch 4 --grad-accum 2"]
    assert set(easing(smaller)) - {"--stage 1"} == {"--micro-batch 8 --grad-accum 1"}


@pytest.mark.parametrize(
    ("size", "seconds", "is_tried"), [(20, 1.0, True), (20, None, False), (99, 1.0, False)]
)
def test_only_a_job_that_fits_is_made_faster(size: float, seconds: float | None, is_tried: bool) -> None:
    def reject(queries: Sequence[EstimateQuery]) -> list[Estimate | Rejected]:
        return [Rejected(Refused(())) for one in queries]

    made = MadeUp(reject)
    try_changes(answer(question(stage=2), forecast(size), seconds), made)
    assert (1 in {one.job.stage for one in made.rounds[0]}) == is_tried


def test_of_what_takes_memory_the_three_fastest_are_said() -> None:
    one = question(stage=2)
    before = answer(one, forecast(20), 1.0)
    paces = {"a": 0.5, "b": 0.9, "c": 0.3, "slower": 1.2, "d": 0.7}
    effects = [effect(named(name), before, answer(one, forecast(30), pace)) for name, pace in paces.items()]
    said = worth_saying(effects, before.need.allocated)
    assert names([one.options for one in said]) == ["c", "a", "d"]


def test_what_is_faster_and_does_not_fit_is_left_out() -> None:
    one = question(stage=2)
    before = answer(one, forecast(20), 1.0)
    faster = effect(named("x"), before, answer(one, forecast(99), 0.5))
    assert worth_saying([faster], before.need.allocated) == []


def test_what_saves_nothing_is_left_out() -> None:
    one = question(stage=2)
    before = answer(one, forecast(20))
    sizes = (19.9, 15, 5, 25)
    effects = [effect(named(str(size)), before, answer(one, forecast(size))) for size in sizes]
    said = worth_saying(effects, before.need.allocated)
    assert names([one.options for one in said]) == ["15", "5"]


def test_a_part_is_reduced_by_what_leaves_least_of_it() -> None:
    one = question(stage=2)
    before = answer(one, forecast(20))
    effects = [effect(named(str(size)), before, answer(one, forecast(size))) for size in (15, 5)]
    assert most_reduced("activations", 20 << 30, effects) == (named("5"), 5 << 30)
    assert most_reduced("gradients", 0, effects) is None


def test_a_part_that_left_the_peak_is_not_gone() -> None:
    one = question(stage=2)
    smaller = forecast(5)
    forward = Phase("forward", {"gpu": 4 << 30}, {}, {"gpu": {"logits": 4 << 30}})
    load = Phase("load", {"gpu": 5 << 30}, {}, {"gpu": {"activations": 20 << 30}})
    after = answer(one, replace(smaller, phases=(load, forward, *smaller.phases)))
    changed = effect(named("x"), answer(one, forecast(20)), after)
    assert changed.parts == {"activations": 5 << 30, "logits": 4 << 30}


@pytest.mark.parametrize(
    ("options", "typed"),
    [
        (Options(stage=3), "--stage 3"),
        (Options(activation_checkpointing=True), "-- --gradient_checkpointing"),
        (Options(activation_checkpointing=False), "-- --gradient_checkpointing False"),
        (
            Options(micro_batch=2, grad_accum=4),
            "-- --per_device_train_batch_size 2 --gradient_accumulation_steps 4",
        ),
        (
            Options(stage=3, offload=Offload("cpu", "cpu"), activation_checkpointing=True, micro_batch=1),
            "--stage 3 --offload cpu -- --gradient_checkpointing --per_device_train_batch_size 1",
        ),
        (Options(overrides=(("a.b", 5),)), "--set a.b=5"),
        (
            Options(stage=3, offload=Offload("nvme", "cpu")),
            "--stage 3 --offload optimizer:nvme,param:cpu --nvme DIR",
        ),
        (Options(lora=Lora(16)), None),
        (Options(stage=2, seq_len=512), None),
    ],
)
def test_train_takes_its_own_options_first_and_then_the_scripts(options: Options, typed: str | None) -> None:
    assert options.for_train() == typed


def test_a_script_without_the_trainer_takes_its_batch_from_the_ds_config() -> None:
    smaller = Options(micro_batch=2, grad_accum=4)
    keys = "--set train_micro_batch_size_per_gpu=2 --set gradient_accumulation_steps=4"
    assert smaller.for_train("key") == keys
    assert Options(activation_checkpointing=True).for_train("key") is None
