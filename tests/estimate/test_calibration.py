"""Forecasts for a machine on which configurations were measured."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.asking import question
from zlaunch.estimate.calibration import CALIBRATED, MeasuredRecord, keep, measured_record
from zlaunch.estimate.estimator import Estimator
from zlaunch.estimate.query import Estimate, EstimateQuery
from zlaunch.files import typed
from zlaunch.hosts.machine.measured_speeds import MeasuredSpeeds
from zlaunch.units import brief

TIMES = 1.25


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZLAUNCH_CACHE", str(tmp_path))
    return tmp_path


def estimate(query: EstimateQuery) -> Estimate:
    (made,) = Estimator().closed_form([query])
    assert isinstance(made, Estimate)
    return made


def seconds(query: EstimateQuery) -> float:
    return estimate(query).seconds or 0.0


def elsewhere(query: EstimateQuery) -> EstimateQuery:
    machine = replace(query.given.machine, hostname="another")
    return replace(query, given=replace(query.given, machine=machine))


def measure(query: EstimateQuery, run: str, times: float, memory: int | None = None) -> MeasuredRecord:
    record = measured_record(estimate(query), run)
    predicted = record["predicted_seconds"] or 0.0
    measured: MeasuredRecord = {"seconds": times * predicted, "predicted_memory": 100, "memory": memory}
    keep([{**record, **measured}])
    return {**record, **measured}


def test_a_predicted_time_is_corrected_by_what_was_measured_on_the_same_machine_alone() -> None:
    before = seconds(question(stage=2))
    measure(question(stage=2), "1-measure/run-1", TIMES)
    assert seconds(question(stage=2)) == pytest.approx(TIMES * before)
    assert seconds(elsewhere(question(stage=2))) == pytest.approx(before)


def test_a_forecast_with_other_speeds_corrects_no_time_but_keeps_what_memory_was_off_by() -> None:
    query = question(stage=2)
    measure(query, "run-1", TIMES, memory=150)
    measured = replace(query, cluster=replace(query.cluster, measured=MeasuredSpeeds(links=1e11)))
    found = estimate(measured)
    assert found.speed is not None
    assert (found.speed.roofline.correction, found.forecast.error) == (1.0, 0.5)
    assert [finding.message for finding in found.remarks if finding.code == CALIBRATED] == [
        "calibrated by run-1, which took <1 MiB of memory where <1 MiB were predicted"
    ]


@pytest.mark.parametrize("other", [{"model": "another"}, {"precision": "fp32"}])
def test_nothing_is_corrected_by_what_another_model_or_precision_took(other: MeasuredRecord) -> None:
    before = seconds(question(stage=2))
    record = measured_record(estimate(question(stage=2)), "run-1")
    keep([{**record, "seconds": 6 * before, **other}])
    assert seconds(question(stage=2)) == before


def test_the_same_stage_decides_before_the_newest() -> None:
    before = [seconds(question(stage=stage)) for stage in (1, 2, 3)]
    measure(question(stage=2), "run-1", TIMES)
    measure(question(stage=3), "run-2", 2 * TIMES)
    after = [seconds(question(stage=stage)) for stage in (1, 2, 3)]
    factors = [now / then for now, then in zip(after, before, strict=True)]
    assert factors == pytest.approx([2 * TIMES, TIMES, 2 * TIMES])


def test_measuring_again_does_not_correct_what_is_corrected() -> None:
    before = seconds(question(stage=2))
    for run in ("run-1", "run-2"):
        measure(question(stage=2), run, TIMES)
    assert seconds(question(stage=2)) == pytest.approx(TIMES * before)


@pytest.mark.parametrize(("memory", "error"), [(150, 0.5), (80, 0.0)])
def test_the_memory_may_be_off_by_as_much_as_it_was_too_low(memory: int, error: float) -> None:
    known = estimate(question(stage=2)).forecast
    measure(question(stage=2), "run-1", 1.0, memory)
    corrected = estimate(question(stage=2)).forecast
    assert corrected.error == pytest.approx(max(known.error, error))
    assert corrected.phases == known.phases


def test_a_calibration_is_told_with_the_run_and_how_to_leave_it_out(cache: Path) -> None:
    record = measure(question(stage=2), "1-measure/run-1", TIMES)
    (finding,) = [one for one in estimate(question(stage=2)).findings if one.code == CALIBRATED]
    assert finding.message == (
        f"calibrated by 1-measure/run-1, which took {brief(record['seconds'] or 0.0)} a step where "
        f"{brief(record['predicted_seconds'] or 0.0)} were predicted"
    )
    assert finding.hint == f"`rm {typed(cache / 'measured.jsonl')}` leaves out what was measured here"


def test_without_the_file_nothing_is_corrected(cache: Path) -> None:
    before = seconds(question(stage=2))
    measure(question(stage=2), "run-1", TIMES)
    (cache / "measured.jsonl").unlink()
    assert seconds(question(stage=2)) == before
