"""What an estimate says, over answers that are made up."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.asking import answer, by_formula, forecast, question
from tests.running import RECIPE
from zlaunch.cli.views.estimate_report import RehearsalLine
from zlaunch.cli.views.estimate_strategies import known_rows, nothing_fits, table_lines
from zlaunch.cli.views.estimate_text import (
    A_FEW_STEPS,
    estimate_lines,
    further_findings,
    start_lines,
    time_lines,
)
from zlaunch.estimate.changes import Options
from zlaunch.estimate.estimator import Estimator, RehearsalProgress
from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.query import remarks_on
from zlaunch.estimate.rehearse import Done, Rehearsed
from zlaunch.estimate.speed.communication import Communication
from zlaunch.estimate.speed.step_time import Roofline, Speed, Term
from zlaunch.estimate.strategies import STRATEGIES, StrategyTable, apply_strategy
from zlaunch.estimate.uncounted import Effect, Uncounted
from zlaunch.estimate.workload import Workload
from zlaunch.job.public_models import find_public
from zlaunch.job.script import Handover
from zlaunch.job.spec import Offload
from zlaunch.job.trainer_args import TrainerArgs

REHEARSED = forecast(10.0, seconds=1.0)
KEPT = replace(REHEARSED, kept=True)


def not_rehearsed(why: str) -> Forecast:
    return replace(REHEARSED, method="closed form", error=0.15, why_not_rehearsed=why)


def small_llama() -> Mapping[str, Any]:
    config: dict[str, Any] = json.loads(RECIPE.with_name("small_llama").joinpath("config.json").read_bytes())
    return config


def table(*forecasts: Forecast) -> str:
    told = [*forecasts, *[REHEARSED] * (len(STRATEGIES) - len(forecasts))]
    rows = [
        (strategy, answer(apply_strategy(question(), strategy), one, 1.0))
        for strategy, one in zip(STRATEGIES, told, strict=True)
    ]
    return " ".join(" ".join(table_lines(StrategyTable(tuple(rows)))).split())


def test_a_table_says_for_which_strategies_the_numbers_come_from_elsewhere() -> None:
    said = table(not_rehearsed("too large"), REHEARSED, KEPT)
    assert "method rehearsed: two steps of DeepSpeed on fake tensors but `--stage 0`: " in said
    assert "but `--stage 0`: closed form, up to 15% off; no rehearsal: too large" in said
    assert "but `--stage 2`: rehearsed by an earlier command; " in said


def test_a_table_gives_one_of_many_reasons_not_to_rehearse_and_says_whose_it_is() -> None:
    said = table(*(not_rehearsed(f"it takes {number}") for number in range(len(STRATEGIES))))
    assert "up to 15% off; no rehearsal of `--stage 0`: it takes 0 (`--json` has the reasons" in said
    assert "it takes 1" not in said
    assert "but " not in said


def test_the_memory_check_before_a_start_says_why_it_is_the_closed_form() -> None:
    said = " ".join(" ".join(start_lines(answer(question(), not_rehearsed("peft is missing")))).split())
    assert "method closed form, up to 15% off; no rehearsal: peft is missing" in said


def test_the_memory_check_before_a_start_says_for_how_long_sequences_it_is() -> None:
    asked = question(options=Options(seq_len=64))
    assert "  sequence  64 tokens (`--seq-len`)" in [*start_lines(answer(asked, REHEARSED))]


@pytest.mark.parametrize(
    ("model", "handover", "hint"),
    [
        (1_000, Handover.ARGUMENTS, "hint: `--set zero_optimization.reduce_bucket_size=1000` is enough"),
        (1_000, Handover.NOT, "hint: a `reduce_bucket_size` of 1000 in the script's ds_config is enough"),
        (10**9, Handover.ARGUMENTS, ""),
    ],
)
def test_buckets_that_dwarf_the_model_are_answered_with_the_size_that_is_enough(
    model: int, handover: Handover, hint: str
) -> None:
    asked = question(stage=2)
    asked = replace(asked, given=replace(asked.given, handover=handover))
    told = replace(REHEARSED, trainable=model, parts={"gpu": {"buckets": 9 << 30, "gradients": 1 << 30}})
    said = " ".join(" ".join(estimate_lines(answer(asked, told))).split())
    assert hint in said
    assert ("hint: " in said) == bool(hint)


def test_a_job_without_a_step_time_says_why() -> None:
    said = " ".join(" ".join(estimate_lines(answer(question(stage=2), REHEARSED))).split())
    assert "no traffic and no step time: they are computed for language models" in said


def test_an_open_verdict_says_how_to_find_out() -> None:
    doubt = Uncounted("train.py:3", "compares a value", Effect.EITHER)
    asked = question(stage=2)
    asked = replace(asked, training=replace(asked.training, uncounted=(doubt,)))
    said = " ".join(" ".join(estimate_lines(answer(asked, REHEARSED))).split())
    assert "cannot tell whether it fits" in said
    assert A_FEW_STEPS in said


def test_a_doubt_that_the_verdict_names_is_not_told_twice() -> None:
    doubt = Uncounted("train.py:3", "compares a value", Effect.EITHER)
    asked = question(stage=2)
    asked = replace(asked, training=replace(asked.training, uncounted=(doubt,)))
    told = answer(asked, REHEARSED)
    told = replace(told, remarks=tuple(remarks_on(REHEARSED, asked)))
    assert len(told.remarks) == 1
    assert further_findings(told) == []


def test_a_table_in_which_stages_seem_to_save_nothing_says_what_they_partition() -> None:
    said = " ".join(" ".join(table_lines(by_formula(small_llama()))).split())
    assert "stage offload states used process" in said
    assert re.search(
        r"ZeRO partitions `states`: .* 50 MiB without ZeRO\. Most of `used` is activations", said
    )


def test_a_table_in_which_stages_save_most_of_the_memory_needs_no_explanation() -> None:
    public = find_public("meta-llama/Llama-3.1-8B")
    assert public is not None
    assert "partitions" not in " ".join(table_lines(by_formula(public.config, micro=1)))


def test_states_without_zero_are_sixteen_bytes_for_each_parameter() -> None:
    _, plain = by_formula(small_llama()).estimates[0]
    assert plain.forecast.states == pytest.approx(16 * plain.forecast.parameters, rel=0.001)


@pytest.mark.parametrize(
    ("tried", "said"), [(None, "leave out `--no-levers`"), ((), "none of the tested changes helps")]
)
def test_a_table_in_which_nothing_fits_says_what_was_tried(tried: tuple[()] | None, said: str) -> None:
    assert said in " ".join(nothing_fits(tried))


def test_where_it_is_close_what_makes_it_fit_is_named_and_not_that_nothing_fits() -> None:
    said = " ".join(nothing_fits([Options(micro_batch=1)], is_close=True))
    assert said.startswith("hint: it fits with `--micro-batch 1`")


def test_a_batch_that_nobody_chose_is_said_to_be_the_trainers_default() -> None:
    asked = question(stage=2)
    plain = replace(asked, given=replace(asked.given, args=TrainerArgs()))
    said = "8 per rank is the Trainer's default; set it with `--micro-batch`"
    assert said in " ".join(estimate_lines(answer(plain, REHEARSED)))
    assert said not in " ".join(estimate_lines(answer(asked, REHEARSED)))


def test_what_makes_it_fit_says_that_the_host_is_unchecked_and_names_lora_where_there_is_none() -> None:
    offload = [Options(stage=3, offload=Offload("cpu", "cpu"))]
    said = " ".join(" ".join(nothing_fits(offload, checks_host=False)).split())
    assert "of host memory is not checked" in said
    assert "--lora 16" in said
    said = " ".join(nothing_fits(offload, checks_host=True, has_lora=True))
    assert ("host memory" in said, "lora" in said) == (False, False)


def test_what_takes_longest_is_told_by_the_time_it_probably_takes() -> None:
    terms = (
        Term("compute", 0.1, True, "", (0.13, 0.2)),
        Term("launches", 0.0, True, "", (0.2, 0.4)),
        Term("optimizer", 0.11, False, "", (0.12, 0.13)),
    )
    speed = Speed(Communication((), 0, 0, 0, 0), Roofline(terms, 0.21, (0.32, 0.73), 1000.0))
    first, *_, second, third = [*time_lines(speed), ""][:-1]
    assert first == "a step takes 0.32 s to 0.73 s (not measured: calibrated on published runs)"
    last = " ".join(f"{second} {third}".split())
    assert "launches take longest; by data sheets alone, a step takes at least 0.21 s: at most 1,000" in last
    assert "not measured" not in last


def test_of_one_job_no_more_jobs_are_counted_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def rehearse(workloads: Sequence[Workload], done: Done | None = None) -> list[Rehearsed]:
        if done is not None:
            done({}, len(workloads))
        return [REHEARSED for _ in workloads]

    said: list[str] = []
    monkeypatch.setattr("zlaunch.console.ProgressLine.draw", lambda _, lines: said.extend(lines))
    with RehearsalLine() as line:
        estimator = Estimator(line, rehearse)
        estimator.rehearse([question(stage=2)])
        estimator.rehearse([question(stage=1), question(stage=2)])
    assert said == ["rehearsing 1 job (0 of 2 ranks done)", "rehearsing 2 jobs (0 of 2 done)"]


def test_rows_are_shown_on_a_terminal_as_soon_as_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def rehearse(workloads: Sequence[Workload], done: Done | None = None) -> list[Rehearsed]:
        assert done is not None
        for count in range(len(workloads)):
            done(dict.fromkeys(range(count), REHEARSED), len(workloads))
        return [REHEARSED for _ in workloads]

    monkeypatch.setattr("zlaunch.console.ProgressLine.draw", lambda _, lines: shown.append("\n".join(lines)))
    with RehearsalLine() as line, line.showing(known_rows):
        Estimator(line, rehearse).rehearse([question(stage=stage) for stage in (0, 1, 2)])
    assert [len(frame.splitlines()) for frame in shown] == [1, 4, 5]
    assert shown[-1].splitlines()[-3].split()[0] == "0"
    assert shown[-1].endswith("rehearsing 3 jobs (2 of 3 done)")


def test_a_long_search_says_now_and_then_in_a_pipe_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 20.0, 65.0, 70.0])
    monkeypatch.setattr("zlaunch.cli.views.estimate_report.time.monotonic", lambda: next(clock))
    with RehearsalLine("rehearsing") as line:
        for _ in range(3):
            line(RehearsalProgress(2, 2, 2))
    assert capsys.readouterr().err == "rehearsing: 4 done after 1 min 05 s\n"


def test_a_job_alone_says_nothing_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with RehearsalLine() as line:
        line(RehearsalProgress(1, 2, 2))
    assert capsys.readouterr().err == ""
