"""What an estimate says, over answers that are made up."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.asking import SITE, answer, forecast, question
from zlaunch.cli.views.estimate_report import Asking
from zlaunch.cli.views.speed import time_lines
from zlaunch.cli.views.strategies import ladder_lines, nothing_fits
from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.memory.communication import Communication
from zlaunch.estimate.memory.roofline import Roofline, Term
from zlaunch.estimate.query import Speed
from zlaunch.estimate.rehearse import Done
from zlaunch.estimate.rehearse import Found as Told
from zlaunch.estimate.strategies import STRATEGIES, apply_strategy
from zlaunch.estimate.workload import Workload

REHEARSED = forecast(10.0, seconds=1.0)
KEPT = replace(REHEARSED, kept=True)


def by_formula(why: str) -> Forecast:
    return replace(REHEARSED, method="closed form", error=0.15, why_not_rehearsed=why)


def ladder(*forecasts: Forecast) -> str:
    told = [*forecasts, *[REHEARSED] * (len(STRATEGIES) - len(forecasts))]
    answers = [
        answer(apply_strategy(question(), rung), one, 1.0) for rung, one in zip(STRATEGIES, told, strict=True)
    ]
    return " ".join(" ".join(ladder_lines(answers[0], answers, None, SITE)).split())


def test_a_ladder_says_of_which_rungs_the_numbers_come_from_elsewhere() -> None:
    said = ladder(by_formula("too large"), REHEARSED, KEPT)
    assert "method rehearsed: DeepSpeed itself took two steps without memory but `--stage 0`: " in said
    assert "but `--stage 0`: closed form, up to 15% off; no rehearsal: too large" in said
    assert "but `--stage 2`: rehearsed by an earlier command; " in said


def test_a_ladder_gives_one_of_many_reasons_not_to_rehearse_and_says_whose_it_is() -> None:
    said = ladder(*(by_formula(f"it takes {number}") for number in range(len(STRATEGIES))))
    assert "up to 15% off; no rehearsal of `--stage 0`: it takes 0 (`--json` has the reasons" in said
    assert "it takes 1" not in said
    assert "but " not in said


@pytest.mark.parametrize(
    ("tried", "said"), [(None, "leave out `--no-levers`"), ((), "no change that was tried helps")]
)
def test_a_ladder_on_which_nothing_fits_says_what_was_tried(tried: tuple[()] | None, said: str) -> None:
    assert said in " ".join(nothing_fits(tried))


def test_what_takes_longest_is_told_by_the_time_it_probably_takes() -> None:
    terms = (
        Term("compute", 0.1, True, "", (0.13, 0.2)),
        Term("launches", 0.0, True, "", (0.2, 0.4)),
        Term("optimizer", 0.11, False, "", (0.12, 0.13)),
    )
    speed = Speed(Communication((), 8, 0, 0, 0, 0), Roofline(terms, 0.21, (0.32, 0.73), 1000.0))
    first, *_, second, third = [*time_lines(speed), ""][:-1]
    assert first == "a step takes 0.32 s to 0.73 s (not measured: calibrated on published runs)"
    last = " ".join(f"{second} {third}".split())
    assert "launches take longest; by data sheets alone a step takes at least 0.21 s: at most 1,000" in last
    assert "not measured" not in last


def test_of_one_job_no_more_jobs_are_counted_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    class Quick:
        def __call__(self, workloads: Sequence[Workload], done: Done | None = None) -> list[Told]:
            if done is not None:
                done(0, len(workloads))
            return [REHEARSED for _ in workloads]

        def close(self) -> None: ...

    said: list[str] = []
    monkeypatch.setattr("zlaunch.estimate.run.rehearser", Quick)
    monkeypatch.setattr("zlaunch.console.ProgressLine.show", lambda _, *words: said.append(" ".join(words)))
    with Asking(SITE) as ask:
        ask([question(stage=2)])
        ask([question(stage=1), question(stage=2)])
    assert said == ["rehearsing 1 job (0 of 2 ranks done)", "rehearsing 2 jobs (0 of 2 done)"]
