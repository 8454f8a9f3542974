"""The progress of a job in one line."""

import math
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.launch.monitoring.test_progress import heartbeat, progress_of, snapshots, stepping
from zlaunch.cli.views.progress import plain_line, progress_line
from zlaunch.cli.views.run import STATE_COLOURS
from zlaunch.launch.monitoring.progress import Snapshot, no_progress
from zlaunch.rundir import phases
from zlaunch.rundir.read import conform
from zlaunch.rundir.record import HeartbeatRecord, SampleRecord
from zlaunch.runs.run import State

sizes = st.integers(0, 10**13)
samples = st.builds(
    lambda host, gpu: conform({"rss_bytes": host, "gpu": {"used_bytes": gpu}}, SampleRecord), sizes, sizes
)


@given(snapshots, st.integers(0, 200), samples)
def test_the_line_is_never_wider_than_asked_and_never_more_than_one(
    seen: list[Snapshot], width: int, sample: SampleRecord
) -> None:
    line = progress_line(replace(progress_of(seen), sample=sample), 4, width)
    assert len(line) <= width
    assert line.isprintable()
    assert plain_line(progress_of(seen), 4).isprintable()


@pytest.mark.parametrize("total", [None, 0, -1])
def test_without_a_known_end_there_is_no_bar_and_no_time_left(total: int | None) -> None:
    progress = stepping(1.0, 5, steps=total)
    assert progress.seconds_left is None
    assert progress_line(progress, 1, 80).startswith("step 5")


def test_the_time_in_a_phase_is_shown_before_the_first_step() -> None:
    waiting = progress_of([Snapshot(3.0, {0: heartbeat(1e9, phases.LOADING)})])
    line = progress_line(waiting.after(Snapshot(10.0, {0: heartbeat(1e9, phases.LOADING)})), 1, 80)
    assert "loading the model 0:07" in line


def test_on_a_terminal_the_state_has_a_colour_and_the_text_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = stepping(1.0, 5, steps=10).after(Snapshot(99.0, {}))
    plain = progress_line(quiet, 1, 80)
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))
    coloured = progress_line(quiet, 1, 80)
    assert "\033[36m[======>     ] 5/10\033[0m" in coloured
    assert "\033[33mno progress for" in coloured
    assert re.sub(r"\033\[\d+m", "", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert progress_line(quiet, 1, 80) == plain


@pytest.mark.parametrize("state", State)
def test_each_state_of_a_run_has_a_colour(state: State) -> None:
    assert state in STATE_COLOURS


def test_what_matters_most_comes_first_in_a_line() -> None:
    more = {"loss": math.nan, "learning_rate": 3e-4}
    progress = progress_of(
        [
            Snapshot(n, {0: heartbeat(n, phases.TRAINING, n, steps=10, tokens=n * 8192, **more)})
            for n in range(1, 6)
        ]
    )
    progress = replace(progress, sample={"rss_bytes": 3 << 30})
    line = progress_line(progress, 2, 200)
    assert line == "[======>     ] 5/10  0:05 left  loss nan  lr 0.0003  16.4k tok/s  3.0 GiB a rank"
    assert progress_line(progress, 2, 40) == "[======>     ] 5/10  0:05 left  loss nan"
    assert "16.4k tok/s  MFU 41%" in progress_line(replace(progress, mfu=0.412), 2, 200)
    said = "step 5 of 10, 0:05 left, loss nan, lr 0.0003, 16.4k tok/s, 3.0 GiB a rank"
    assert plain_line(progress, 2) == said
    on_gpu = replace(progress, sample={"rss_bytes": 3 << 30, "gpu": {"used_bytes": 31 << 30}})
    assert progress_line(on_gpu, 2, 200).endswith("16.4k tok/s  31.0 GiB of GPU memory")


def test_a_job_without_progress_has_no_time_left() -> None:
    progress = stepping(1.0, 5, steps=10)
    assert "5/10  0:05 left" in progress_line(progress, 1, 80)
    line = progress_line(progress.after(Snapshot(20.0, {})), 1, 80)
    assert ("no progress for 0:15" in line, "left" in line) == (True, False)


def test_a_long_step_is_no_lack_of_progress() -> None:
    progress = stepping(30.0, 5, steps=10)
    assert "progress" not in progress_line(progress.after(Snapshot(170.0, {})), 1, 80)


def test_the_loss_is_that_of_the_last_step_and_not_the_mean_that_a_trainer_logs() -> None:
    beat = heartbeat(1.0, phases.TRAINING, 1, steps=10, step_loss=2.5)
    assert "loss 2.500" in progress_line(progress_of([Snapshot(1.0, {0: beat})]), 1, 80)
    logged: HeartbeatRecord = {**beat, "loss": 3.0}
    assert "loss 2.500" in progress_line(progress_of([Snapshot(1.0, {0: logged})]), 1, 80)
    newer: HeartbeatRecord = {**logged, "loss_step": 9, "seen_loss_step": 4}  # read from a GPU now and then
    assert "loss 3.000" in progress_line(progress_of([Snapshot(1.0, {0: newer})]), 1, 80)


def test_a_script_that_has_begun_does_not_start_again() -> None:
    seen = (phases.STARTING, phases.IMPORTING, phases.STARTING, phases.LOADING, phases.STARTING)
    progress, shown = no_progress(0.0), []
    for moment, phase in enumerate(seen):
        progress = progress.after(Snapshot(5.0 * moment, {0: heartbeat(moment, phase)}))
        shown.append(progress_line(progress, 1, 80)[15:-5])
    assert shown == ["starting", "importing", "preparing", "loading the model", "preparing"]


@pytest.mark.parametrize(("phase", "step"), [(phases.EXITING, 3), (phases.SAVING, 10)])
def test_a_job_that_takes_no_further_step_has_no_time_left(phase: str, step: int) -> None:
    seen = [Snapshot(float(n), {0: heartbeat(n, phases.TRAINING, n, steps=10)}) for n in range(1, step + 1)]
    progress = progress_of([*seen, Snapshot(step + 0.5, {0: heartbeat(step + 0.5, phase, step, steps=10)})])
    line = progress_line(progress, 1, 80)
    assert phase in line
    assert "left" not in line
