"""What a run took of each pool of memory, beside what was predicted of it."""

from pathlib import Path
from typing import Any

import pytest

from zlaunch.estimate.forecast import PROGRAM_BYTES, program_bytes
from zlaunch.rundir.record import JobRecord
from zlaunch.runs.memory import (
    NOT_MEASURED,
    NOT_PREDICTED,
    ON_A_CPU,
    TOO_EARLY,
    PoolComparison,
    compare_with_forecast,
)
from zlaunch.runs.run import Run

GIB = 1 << 30
FORECAST = {
    "phases": [
        {"peak": {"gpu": 8 * GIB, "reserved": 10 * GIB, "pageable": 3 * GIB, "pinned": 1 * GIB}},
        {"peak": {"gpu": 6 * GIB, "reserved": 11 * GIB, "pageable": 1 * GIB, "pinned": 2 * GIB}},
    ]
}


def pools(accelerator: str = "cuda", **files: Any) -> dict[str, PoolComparison]:
    return {pool.name: pool for pool in comparison(accelerator, **files).pools}


def comparison(accelerator: str = "cuda", **files: Any) -> Any:
    job: JobRecord = {"accelerator": accelerator, "ranks": [{}, {}], "started": 1.0}
    files = {"last_metrics": {"step": 3}, **files}
    return compare_with_forecast(Run(Path("/r"), 2.0).holding(is_alive=False, job=job, **files))


def test_the_fullest_rank_is_compared_with_the_fullest_phase() -> None:
    heartbeats = {0: {"gpu_allocated_bytes": 5 * GIB}, 1: {"gpu_allocated_bytes": 10 * GIB}}
    one = pools(forecast=FORECAST, heartbeats=heartbeats)["GPU, tensors"]
    assert (one.predicted, one.measured, one.percent) == (8 * GIB, 10 * GIB, -20.0)


def test_the_pools_of_a_host_are_added_up_phase_by_phase_with_the_program() -> None:
    one = pools(forecast=FORECAST, ranks={0: {"peak_rss_bytes": 4 * GIB + PROGRAM_BYTES}})["host, resident"]
    assert (one.predicted, one.percent) == (4 * GIB + PROGRAM_BYTES, 0.0)


@pytest.mark.parametrize(
    "files",
    [
        {"ranks": {0: {"peak_rss_bytes": 7}}},
        {"samples": {0: {"peak_rss_bytes": 7, "rss_bytes": 3}}},
        {"samples": {0: {"rss_bytes": 7}}, "ranks": {0: {}}},
    ],
)
def test_a_rank_that_was_killed_is_known_by_its_samples(files: dict[str, Any]) -> None:
    assert pools(**files)["host, resident"].measured == 7


def test_what_lies_on_the_device_comes_from_the_samples() -> None:
    assert pools(samples={0: {"gpu": {"used_bytes": 9}}, 1: {"gpu": None}})["GPU, in use"].measured == 9


def test_on_a_cpu_the_host_is_compared_and_it_says_that_no_gpu_was_measured() -> None:
    forecast = {"phases": [{"peak": {"pageable": 4 * GIB - program_bytes(on_gpu=False)}}]}
    told = comparison("cpu", forecast=forecast, ranks={0: {"peak_rss_bytes": 5 * GIB}})
    assert told.remarks == (ON_A_CPU,)
    assert [pool.percent for pool in told.pools if pool.measured] == [-20.0]


def test_a_run_that_took_too_few_steps_is_not_compared() -> None:
    told = comparison(forecast=FORECAST, ranks={0: {"peak_rss_bytes": 5 * GIB}}, last_metrics={"step": 2})
    assert told.remarks == (TOO_EARLY,)
    assert [pool.percent for pool in told.pools] == [None] * len(told.pools)


def test_the_steps_of_an_earlier_run_do_not_count() -> None:
    heartbeats = {0: {"first_step": 1000, "step": 1001}}
    assert TOO_EARLY in comparison(forecast=FORECAST, heartbeats=heartbeats, last_metrics={}).remarks


@pytest.mark.parametrize(("how", "is_compared"), [("finished", True), ("failed", False)])
def test_a_run_that_told_of_no_step_is_compared_if_it_finished(how: str, is_compared: bool) -> None:
    ranks = {0: {"peak_rss_bytes": 5 * GIB}}
    told = comparison(forecast=FORECAST, ranks=ranks, last_metrics={}, ending={"how": how})
    assert (TOO_EARLY not in told.remarks) is is_compared


def test_without_a_forecast_it_says_that_nothing_was_predicted() -> None:
    assert NOT_PREDICTED in comparison().remarks


def test_what_nobody_measures_says_so() -> None:
    assert pools(forecast=FORECAST)["  pinned"].remark == NOT_MEASURED
