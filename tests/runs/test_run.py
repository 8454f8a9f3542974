"""The state of a run, judged from its records."""

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.making import json_objects
from zlaunch.cli.runs.list import lines_about
from zlaunch.diagnosis.render import LINES, verdict_lines
from zlaunch.diagnosis.stall import stall_lines
from zlaunch.rundir.owner import is_same_process
from zlaunch.rundir.read import conform
from zlaunch.rundir.record import (
    EndingRecord,
    EnvironmentRecord,
    ErrorRecord,
    ForecastRecord,
    HeartbeatRecord,
    JobRecord,
    MetricsRecord,
    RankRecord,
    SampleRecord,
)
from zlaunch.runs.memory import compare_with_forecast
from zlaunch.runs.run import Run, State
from zlaunch.runs.why import headline, verdict_of

NOW = 2_000_000.0
JOB: dict[str, Any] = {
    "started": NOW - 100,
    "script": ["train.py", "--bf16"],
    "ranks": [{"rank": 0, "host": "w0"}, {"rank": 1, "host": "w1"}],
    "stage": 3,
    "offload": {"optimizer": "cpu", "param": None},
    "zlaunch_pid": 7,
    "zlaunch_started": NOW - 101,
    "host": "w0",
}
ROOT = Path("/runs/20260101-120000-train")


KINDS: dict[str, Any] = {
    "job": JobRecord, "ending": EndingRecord, "environment": EnvironmentRecord, "forecast": ForecastRecord,
    "last_metrics": MetricsRecord, "ranks": dict[int, RankRecord], "heartbeats": dict[int, HeartbeatRecord],
    "samples": dict[int, SampleRecord], "errors": dict[int, ErrorRecord],
}  # fmt: skip


def judged(alive: bool | None = False, **files: Any) -> Run:
    """Judge a run whose files hold these objects, as a reader takes them."""
    read = {name: conform(one, KINDS[name]) if name in KINDS else one for name, one in files.items()}
    return Run(ROOT, NOW).holding(is_alive=alive, **{"job": JOB, "changed": NOW - 20, **read})


def told(record: Run) -> list[str]:
    verdict = verdict_of(record)
    return [headline(record)] if verdict is None else verdict_lines(verdict, headline(record), 80)


@pytest.mark.parametrize("how", ["finished", "stumbled", "failed", "stopped", "stalled", "lost"])
@pytest.mark.parametrize("alive", [True, False, None])
def test_an_ending_that_was_written_is_the_state(how: str, alive: bool | None) -> None:
    assert judged(alive, ending={"how": how}).state.value == how


def test_a_run_whose_zlaunch_works_is_running() -> None:
    assert judged(alive=True).state is State.RUNNING


def test_a_run_without_an_ending_whose_zlaunch_is_gone_is_lost() -> None:
    assert judged(alive=False).state is State.LOST


@pytest.mark.parametrize(("silent_for", "state"), [(5, State.RUNNING), (3600, State.UNKNOWN)])
def test_a_run_on_another_host_runs_as_long_as_it_writes(silent_for: float, state: State) -> None:
    assert judged(alive=None, changed=NOW - silent_for).state is state


def test_a_directory_without_a_job_is_broken_and_says_which_file() -> None:
    record = judged(job={}, troubles=("`job.json` is missing",))
    assert (record.state, record.cause) == (State.BROKEN, "`job.json` is missing")


def test_a_lost_run_lasted_until_its_last_sign_of_life() -> None:
    assert judged(alive=False).seconds == 80


def test_a_running_run_has_lasted_until_now() -> None:
    assert judged(alive=True).seconds == 100


def test_an_ending_says_how_long_it_took() -> None:
    assert judged(ending={"how": "failed", "seconds": 42.5}).seconds == 42.5


def test_the_rank_that_came_furthest_says_how_far() -> None:
    record = judged(heartbeats={0: {"step": 11, "steps": 100}, 1: {"step": 12}}, last_metrics={"step": 9})
    assert (record.step, record.steps) == (12, 100)


def test_the_watch_says_how_far_where_no_rank_does() -> None:
    assert judged(last_metrics={"step": 9, "steps": 10}).step == 9


def test_what_stays_on_the_gpu_is_no_offload() -> None:
    assert judged().offload == {"optimizer": "cpu"}


def test_the_verdict_gives_the_cause() -> None:
    record = judged(ending={"how": "failed", "verdict": {"code": "x", "cause": "the disk is full"}})
    assert record.cause == "the disk is full"


def test_a_lost_run_tells_what_is_known() -> None:
    record = judged(heartbeats={0: {"step": 12, "phase": "backward"}, 1: {"step": 12, "phase": "forward"}})
    text = "\n".join(told(record))
    assert "process 7 on w0" in text
    assert "20 s ago" in text
    assert "step 12, rank 0 in backward, rank 1 in forward" in text
    assert "none of 2 ranks recorded an end" in text


def test_an_ending_that_is_half_written_is_not_taken_for_a_kill() -> None:
    record = judged(troubles=("`how-it-ended.json` is broken or half-written",))
    assert (
        record.cause == "zlaunch (process 7 on w0) is gone, and `how-it-ended.json` is broken or half-written"
    )


def test_a_written_verdict_is_told_whole() -> None:
    verdict = {
        "code": "host-out-of-memory", "cause": "the kernel killed rank 1", "rank": 1, "host": "w1",
        "phase": "optimizer step", "facts": ["oom_kill 0 -> 1"], "advice": ["`--offload none`"],
    }  # fmt: skip
    text = "\n".join(told(judged(ending={"how": "failed", "seconds": 5, "verdict": verdict})))
    for part in (
        "failed after 5 s: the kernel",
        "rank 1 on w1, optimizer step",
        "oom_kill",
        "--offload none",
    ):
        assert part in text


def test_a_finished_run_has_nothing_to_explain() -> None:
    record = judged(ending={"how": "finished", "seconds": 61})
    assert (record.cause, told(record)) == (None, ["finished in 1 min 01 s"])


def test_the_process_of_a_run_is_known_by_its_creation() -> None:
    assert is_same_process(conform(JOB, JobRecord), NOW - 101.01)
    assert not is_same_process(conform(JOB, JobRecord), NOW - 50)


def test_without_a_recorded_creation_an_older_process_is_the_runs_own() -> None:
    job: JobRecord = {"started": NOW}
    assert is_same_process(job, NOW - 1)
    assert not is_same_process(job, NOW + 1)


odd_files = st.fixed_dictionaries(
    {},
    optional={
        **{
            name: json_objects | st.sampled_from([JOB, {**JOB, "offload": 3, "ranks": 5, "script": {}}])
            for name in ("job", "environment")
        },
        "ending": json_objects
        | st.fixed_dictionaries(
            {
                "how": st.sampled_from([state.value for state in State]),
                "verdict": json_objects
                | st.fixed_dictionaries(
                    {"cause": st.text(min_size=1), "facts": st.lists(st.text()) | st.text()}
                ),
                "returncode": st.integers(),
                "seconds": st.floats() | st.integers(),
                "stall": json_objects
                | st.fixed_dictionaries(
                    {
                        "seconds": st.floats() | st.integers(),
                        "step": st.integers() | st.text(),
                        "where": json_objects | st.dictionaries(st.sampled_from("01x"), st.text()),
                        "odd": st.none() | st.lists(st.integers() | st.text()),
                    }
                ),
            }
        ),
        "forecast": json_objects | st.fixed_dictionaries({"phases": st.lists(json_objects) | st.text()}),
        **{
            name: st.dictionaries(
                st.integers(0, 3),
                json_objects
                | st.fixed_dictionaries(
                    {
                        "rank": st.integers(0, 3) | st.text(),
                        "returncode": st.integers() | st.none(),
                        "phase": st.text() | st.integers(),
                        "step": st.integers() | st.floats(),
                        "gpu": json_objects | st.none(),
                        "peak_rss_bytes": st.integers() | st.floats(),
                    }
                ),
                max_size=2,
            )
            for name in ("ranks", "heartbeats", "samples", "errors")
        },
        "changed": st.floats(0, 1e10),
    },
)


@given(odd_files, st.sampled_from([True, False, None]))
def test_whatever_stands_in_the_files_a_run_can_be_told_about(
    files: dict[str, Any], alive: bool | None
) -> None:
    record = judged(alive, **files)
    compare_with_forecast(record)
    if (stall := record.stall) is not None:
        assert stall_lines(stall, None, 80)
    assert len(told(record)) <= LINES
    assert all(len(line) <= 80 for line in lines_about([record], NOW, 80))


@pytest.mark.parametrize(
    "name", ["20261231-235959-a-very-long-name-of-a-script-that-somebody-wrote-one-day", "r"]
)
def test_a_line_of_the_list_fits_into_80_columns_at_its_worst(name: str) -> None:
    files: dict[str, Any] = {
        "root": Path("/runs") / name,
        "job": {**JOB, "ranks": [{}] * 4096, "offload": {"optimizer": "nvme", "param": "cpu"}},
        "ending": {"how": "stumbled", "seconds": 1e6, "verdict": {"cause": "word " * 40}},
        "heartbeats": {0: {"step": 1_000_000, "steps": 1_000_000}},
    }
    lines = list(lines_about([judged(**files)], time.time(), 80))
    assert max(map(len, lines)) <= 80
    assert "1000000/1000000" in lines[1]
