"""What `zlaunch plan --measure` runs, in which order, and when it ends; the runs are made up."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.asking import model
from tests.facts import facts_of
from tests.making import TWO_GPUS, local, script
from tests.recorded_run import SECONDS, write_run
from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.estimate.changes import Options
from zlaunch.estimate.strategies import STRATEGIES, is_as_fast
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface
from zlaunch.job.spec import JobSpec
from zlaunch.launch.measure.kept import KeptSamples
from zlaunch.launch.measure.race import Limits, Measurement, Race
from zlaunch.launch.measure.runner import Sample, sample_of
from zlaunch.launch.measure.trials import TrialJob, TrialJobs, trials_of
from zlaunch.runs.run import Run

JOB = JobSpec(script=Path("train.py"))


def trial(number: int, micro_batch: int = 8) -> TrialJob:
    strategy = STRATEGIES[number]
    return TrialJob(strategy, strategy.options | Options(micro_batch=micro_batch), JOB, micro_batch, 1)


STAGES = [trial(number) for number in range(4)]
ZERO, ONE, TWO, THREE = (one.name for one in STAGES)


@dataclass
class Machine:
    """Takes a second for each run, and these seconds for a step; a text is why a run fails."""

    steps: Mapping[str, float | str | BaseException | Callable[[int], float]]
    ran: list[str] = field(default_factory=list)
    now: float = 0.0
    kept: Mapping[str, Sequence[Sample]] | None = None

    def run(self, one: TrialJob, _seconds: float) -> Sample:
        self.ran.append(one.name)
        self.now += 1.0
        outcome = self.steps[one.name]
        if isinstance(outcome, BaseException):
            raise outcome
        if isinstance(outcome, str):
            memory = outcome == "GPU memory ran out"
            return Sample("runs/1", 1.0, failure=outcome, ran_out_of_memory=memory)
        if callable(outcome):
            outcome = outcome(len(self.ran))
        return Sample("runs/1", 1.0, outcome, 18, batch=16)

    def keep(self, samples: Mapping[str, Sequence[Sample]]) -> None:
        self.kept = samples

    def measure(
        self,
        trials: Sequence[TrialJob] = STAGES,
        limits: Limits = Limits(),  # noqa: B008 - it is frozen
        kept: Mapping[str, Sequence[Sample]] | None = None,
    ) -> Measurement:
        return Race(trials, limits, self.run, kept or {}, self.keep, clock=lambda: self.now).run()


def names(result: Measurement) -> list[str]:
    return [one.trial.name for one in result.measured]


def test_the_best_few_run_in_turn_and_the_fastest_comes_first() -> None:
    machine = Machine({ZERO: 1.02, ONE: 1.01, TWO: 1.0})
    result = machine.measure()
    assert machine.ran == 3 * [ZERO, ONE, TWO]
    assert names(result) == [TWO, ONE, ZERO]
    assert (result.num_left, result.why_ended) == (1, "")
    assert result.measured[0].provenance == "measured: 1 s a step, 3 runs"


def test_a_machine_that_becomes_slower_does_not_decide() -> None:
    drift = {name: (lambda ran, base=base: base * (1 + ran / 20)) for name, base in ((ZERO, 1.1), (ONE, 1.0))}
    machine = Machine(drift)
    assert names(machine.measure(STAGES[:2])) == [ONE, ZERO]


def test_what_is_clearly_slower_does_not_run_again() -> None:
    machine = Machine({ZERO: 1.0, ONE: 1.5, TWO: 5.0})
    machine.measure()
    assert machine.ran == [ZERO, ONE, TWO, ZERO, ONE]


def test_a_lucky_first_run_has_to_be_repeated() -> None:
    machine = Machine({ZERO: lambda ran: 0.5 if ran == 1 else 1.2, ONE: 1.0})
    machine.measure(STAGES[:2])
    assert machine.ran.count(ZERO) == machine.ran.count(ONE) > 1


def test_a_configuration_that_fails_is_passed_over_and_the_next_one_runs() -> None:
    refused = Unavailable("no such GPU")
    machine = Machine({ZERO: "the script failed", ONE: refused, TWO: 1.0, THREE: 5.0})
    result = machine.measure(limits=Limits(top=2))
    assert names(result) == [TWO, THREE]
    assert result.passed_over == [(ZERO, "the script failed"), (ONE, "no such GPU")]


def test_smaller_micro_batches_of_the_fastest_stage_run_as_long_as_they_are_faster() -> None:
    sizes = [trial(number, size) for size in (8, 4, 2, 1) for number in (0, 1)]
    seconds = {8: 1.0, 4: 0.5, 2: 9.0, 1: 0.1}
    machine = Machine({one.name: seconds[one.micro_batch or 0] + one.strategy.stage for one in sizes})
    result = machine.measure(sizes, Limits(top=2))
    assert machine.ran[:4] == [trial(0, 8).name, trial(1, 8).name, trial(0, 4).name, trial(0, 2).name]
    assert names(result)[0] == trial(0, 4).name
    assert {*machine.ran} == {*machine.ran[:4]}


def test_a_script_that_fails_anyway_is_not_run_with_every_configuration() -> None:
    machine = Machine(dict.fromkeys((ZERO, ONE, TWO, THREE), "the script failed"))
    result = machine.measure()
    assert machine.ran == [ZERO, ONE, TWO]
    assert (result.num_left, result.why_ended.startswith("the first 3 that ran failed")) == (1, True)


def test_a_repetition_that_fails_takes_nothing_from_what_was_measured() -> None:
    outcomes = iter([1.0, 1.0, None, 1.1, 1.1])
    ran: list[str] = []

    def run(one: TrialJob, _seconds: float) -> Sample:
        ran.append(one.name)
        seconds = next(outcomes)
        failure = "it took too few steps" if seconds is None else None
        return Sample("runs/1", 1.0, seconds, 18, failure=failure)

    result = Race(STAGES[:2], Limits(), run, {}, lambda _: None).run()
    assert sorted(names(result)) == [ZERO, ONE]
    assert ran == [ZERO, ONE, ZERO, ONE, ONE]
    assert result.passed_over == [(ZERO, "it ran, but not again: it took too few steps")]


def test_what_runs_out_of_memory_when_it_is_repeated_is_passed_over() -> None:
    failures = iter([None, None, "GPU memory ran out"])

    def run(_one: TrialJob, _seconds: float) -> Sample:
        failure = next(failures, None)
        seconds = None if failure else 1.0
        return Sample("runs/1", 1.0, seconds, 18, failure=failure, ran_out_of_memory=bool(failure))

    result = Race(STAGES[:2], Limits(), run, {}, lambda _: None).run()
    assert (names(result), result.passed_over) == ([ONE], [(ZERO, "GPU memory ran out")])


def test_nothing_runs_that_needs_no_less_than_what_ran_out_of_memory() -> None:
    larger, smaller, other = trial(0, 8), trial(0, 4), trial(1, 8)
    even_larger = trial(0, 16)
    machine = Machine({larger.name: "GPU memory ran out", smaller.name: 1.0, other.name: 1.0})
    result = machine.measure([larger, even_larger, smaller, other])
    assert even_larger.name not in machine.ran
    assert dict(result.passed_over)[even_larger.name].startswith(f"`{larger.name}` ran out of memory")


def test_no_run_begins_that_would_exceed_the_budget() -> None:
    machine = Machine({ZERO: 1.0, ONE: 1.0, TWO: 1.0})
    result = machine.measure(limits=Limits(seconds=2.5))
    assert machine.ran == [ZERO, ONE]
    assert result.why_ended == "one more run would exceed the budget of 2 s; the same command continues"


def test_what_cannot_win_even_if_its_prediction_is_best_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    likely = {ZERO: 0.5, ONE: 2.0, TWO: 0.0}
    monkeypatch.setattr(TrialJob, "least_seconds", property(lambda one: likely[one.name]))
    machine = Machine({ZERO: 1.0, TWO: 5.0})
    result = machine.measure(STAGES[:3])
    assert ONE not in machine.ran
    assert dict(result.passed_over)[ONE] == "it cannot win: 2.0 s a step are predicted at best"


def test_an_interrupted_measurement_keeps_what_is_known_and_continues_there() -> None:
    machine = Machine({ZERO: 1.0, ONE: KeyboardInterrupt()})
    result = machine.measure(STAGES[:2])
    assert (names(result), result.is_interrupted) == ([ZERO], True)
    again = Machine({ZERO: 1.0, ONE: 2.0})
    result = again.measure(STAGES[:2], kept=machine.kept)
    assert again.ran == [ONE, ZERO, ONE]
    assert result.num_kept == 1


def test_a_failure_is_tried_again_another_time_unless_memory_ran_out() -> None:
    machine = Machine({ZERO: "the script failed", ONE: "GPU memory ran out", TWO: 1.0})
    machine.measure(STAGES[:3])
    assert machine.kept is not None
    assert [*machine.kept] == [ONE, TWO]


def test_an_engine_with_another_global_batch_is_passed_over() -> None:
    samples = iter([Sample("a", 1.0, 1.0, 18, batch=16), Sample("b", 1.0, 0.5, 18, batch=8)])
    machine = Machine({})
    result = Race(STAGES[:2], Limits(), lambda *_: next(samples), {}, machine.keep).run()
    assert result.passed_over == [(ONE, "it trained with a batch of 8, not of 16")]


def test_runs_that_differ_more_than_two_configurations_decide_nothing() -> None:
    machine = Machine({ZERO: lambda ran: 1.0 if ran < 3 else 1.4, ONE: 1.1})
    result = machine.measure(STAGES[:2])
    assert result.is_close
    assert result.spread == pytest.approx(0.4)
    assert not Machine({ZERO: 1.0, ONE: 1.1}).measure(STAGES[:2]).is_close


def listed(
    source: str = "", interface: ConfigInterface = ConfigInterface.TRAINER, **more: object
) -> TrialJobs:
    facts = facts_of(replace(JOB, **more), script(source, interface), topology=local(0, 1))  # type: ignore[arg-type]
    return trials_of(facts, None)


def batches(trials: Iterable[TrialJob]) -> set[tuple[int | None, int | None]]:
    return {(one.micro_batch, one.grad_accum) for one in trials}


def test_all_have_the_same_global_batch_and_the_first_are_of_different_stages() -> None:
    found = listed().listed
    assert batches(found) == {(8, 1), (4, 2), (2, 4), (1, 8)}
    assert [one.strategy for one in found[:4]] == list(STRATEGIES[:4])
    assert {one.micro_batch for one in found[:4]} == {8}


def test_on_a_known_gpu_the_order_is_that_of_the_predicted_speed() -> None:
    job = replace(JOB, args=ScriptArgs(("--block_size", "512")))
    known: dict[str, Any] = {"model": model(), "machine": TWO_GPUS, "topology": local(0, 1)}
    found = trials_of(facts_of(job, script("block_size"), **known), None).listed
    seconds = [one.seconds or 0.0 for one in found if one.micro_batch == 8]
    assert seconds[0] > 0
    assert all(is_as_fast(faster, slower) for faster, slower in pairwise(seconds))
    assert found[3].strategy.stage == 2  # with offload: it is predicted to be faster than stage 3 here


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({}, "the model of the script is unknown"),
        ({"model": model()}, "the length of the sequences is unknown"),
    ],
)
def test_why_nothing_is_predicted_is_said(known: dict[str, Any], why: str) -> None:
    found = trials_of(facts_of(JOB, script(), topology=local(0, 1), **known), None)
    assert {one.estimate for one in found.listed} == {None}
    assert found.why_not_predicted == why


def test_a_trainer_is_told_the_batch_by_its_arguments() -> None:
    smaller = next(one for one in listed().listed if one.micro_batch == 4)
    words = ("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "2")
    assert smaller.job.args.words == words


@pytest.mark.parametrize(
    ("source", "num_batches"),
    [("engine.train_micro_batch_size_per_gpu()", 4), ("DataLoader(data, batch_size=8)", 1)],
)
def test_micro_batches_differ_only_if_the_loop_feeds_what_the_ds_config_says(
    source: str, num_batches: int
) -> None:
    found = listed(f"deepspeed.initialize()\n{source}", ConfigInterface.DEEPSPEED).listed
    assert len(batches(found)) == num_batches


def test_a_batch_that_only_the_script_knows_cannot_be_chosen() -> None:
    facts = facts_of(JOB, script("DataLoader(data)", ConfigInterface.DEEPSPEED), topology=local(0, 1))
    with pytest.raises(WrongUsage, match="decides its batches itself"):
        trials_of(facts, 16)


class Ended:
    has_ended_job, is_late = True, False


def test_the_slowest_steps_of_a_run_do_not_count(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", 30)
    lines = [json.loads(line) for line in (root / "steps.jsonl").read_text().splitlines()]
    for line in lines[20:]:
        line["time"] += 100.0
    (root / "steps.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    sample = sample_of(Run(root), 10.0, Ended())  # type: ignore[arg-type]
    assert sample.seconds == pytest.approx(SECONDS)


def test_a_run_of_too_few_steps_says_nothing(tmp_path: Path) -> None:
    sample = sample_of(Run(write_run(tmp_path / "run", 5)), 10.0, Ended())  # type: ignore[arg-type]
    assert sample.seconds is None
    assert str(sample.failure).startswith("it took too few steps")


def test_another_question_finds_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZLAUNCH_CACHE", str(tmp_path / "cache"))
    program = tmp_path / "train.py"
    program.write_text("")
    facts = facts_of(replace(JOB, script=program), script(), topology=local(0, 1))
    found, sample = trials_of(facts, None), Sample("runs/1", 1.0, 1.0, 18)
    KeptSamples(found, Limits()).keep({ZERO: [sample]})
    assert KeptSamples(found, Limits(top=9)).read() == {ZERO: [sample]}
    assert KeptSamples(found, Limits(steps=50)).read() == {}
    assert KeptSamples(replace(found, per_rank=2), Limits()).read() == {}
    for asked in ({"precision": "fp32"}, {"overrides": (("fp16.enabled", True),)}, {"env": ("A=1",)}):
        other = replace(facts, job=replace(facts.job, **asked))
        assert KeptSamples(replace(found, facts=other), Limits()).read() == {}
    program.write_text("changed")
    assert KeptSamples(found, Limits()).read() == {}
