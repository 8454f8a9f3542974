"""What is shown of a job, and how often: over a run directory that a test fills."""

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from zlaunch.cli.views.launch import LaunchView
from zlaunch.errors import WrongUsage
from zlaunch.job.spec import MonitorOptions, ranks_to_show
from zlaunch.launch.monitoring import monitor as watching
from zlaunch.launch.monitoring.monitor import JobMonitor
from zlaunch.rundir.layout import RunDir


@pytest.mark.parametrize(
    ("text", "interactive", "ranks"),
    [
        (None, True, ()),
        (None, False, (0,)),
        ("all", True, (0, 1, 2, 3)),
        ("none", False, ()),
        ("0", True, (0,)),
        ("3, 1,1", True, (1, 3)),
    ],
)
def test_ranks_are_chosen(text: str | None, interactive: bool, ranks: tuple[int, ...]) -> None:
    assert ranks_to_show(text, 4, interactive) == ranks


@pytest.mark.parametrize("text", ["4", "-1", "0-2", "", "0,", "every", "1.5", "²"])
def test_a_rank_that_will_not_be_there_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage, match="there are ranks 0 to 3"):
        ranks_to_show(text, 4, False)


class Clock:
    """The time, as a test has it pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1.7e9 + self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(watching, "time", made)
    return made


@pytest.fixture
def layout(tmp_path: Path) -> RunDir:
    (tmp_path / "ranks").mkdir()
    (tmp_path / "logs").mkdir()
    return RunDir(tmp_path)


def pulse(layout: RunDir, rank: int, **facts: Any) -> None:
    layout.rank_heartbeat(rank).write_text(json.dumps(facts))


def test_a_log_gets_a_line_for_each_phase_once_and_then_one_in_thirty_seconds(
    layout: RunDir, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = JobMonitor(layout, 1, MonitorOptions(show_ranks=()), lambda: None, LaunchView())
    for phase in ["importing", "starting", "importing", "building ops", "importing", "forward", "backward"]:
        pulse(layout, 0, time=clock.now, phase=phase, step=0)
        watch.tick()
        clock.now += 2
    for step in range(1, 51):
        pulse(layout, 0, time=clock.now, phase="forward", step=step, steps=50)
        watch.tick()
        clock.now += 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[:4] == ["importing", "building ops", "first forward", "first backward"]
    assert [line.partition(",")[0] for line in lines[4:]] == [
        "step 15 of 50",
        "step 30 of 50",
        "step 45 of 50",
    ]


def test_a_rank_whose_records_were_deleted_still_has_a_buffer_to_delete(layout: RunDir, clock: Clock) -> None:
    watch = JobMonitor(layout, 1, MonitorOptions(show_ranks=()), lambda: None, LaunchView())
    record = {"rank": 0, "host": os.uname().nodename, "buffer": "/dev/shm/its"}
    layout.rank_record(0).write_text(json.dumps(record))
    watch.tick()
    shutil.rmtree(layout.root)
    watch.end()
    assert watch.buffers == ["/dev/shm/its"]


@pytest.mark.parametrize(("ends_on_nan", "stops"), [(True, ["stop"]), (False, [])])
def test_a_loss_that_stays_nan_ends_a_job_that_asks_for_it(
    ends_on_nan: bool, stops: list[str], layout: RunDir, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped: list[str] = []
    options = MonitorOptions(show_ranks=(), ends_on_nan=ends_on_nan)
    watch = JobMonitor(layout, 1, options, lambda: stopped.append("stop"), LaunchView())
    for step in range(10, 20):
        lost = {"step_loss": math.nan, "loss_lost": 12} if step >= 12 else {"step_loss": 1.0}
        pulse(layout, 0, time=clock.now, phase="forward", step=step, seen_loss_step=step, **lost)
        watch.tick()
        clock.now += 2
        assert stopped == (stops if step >= 16 else [])
    assert watch.is_diverged is ends_on_nan
    assert ("the loss is nan since step 12: ending the job" in capsys.readouterr().err) is ends_on_nan


def test_a_loss_that_is_rarely_looked_at_has_to_be_nan_twice(layout: RunDir, clock: Clock) -> None:
    stopped: list[str] = []
    options = MonitorOptions(show_ranks=(), ends_on_nan=True)
    watch = JobMonitor(layout, 1, options, lambda: stopped.append("stop"), LaunchView())
    for step, seen in ((100, 100), (120, 100), (130, 130)):
        pulse(
            layout,
            0,
            time=clock.now,
            phase="forward",
            step=step,
            loss=math.inf,
            loss_lost=100,
            seen_loss_step=seen,
        )
        watch.tick()
        clock.now += 2
        assert stopped == (["stop"] if step == 130 else [])


def stalled(
    layout: RunDir, clock: Clock, options: MonitorOptions, *, is_saving: bool = False, **last: Any
) -> tuple[JobMonitor, list[str]]:
    stops: list[str] = []
    watch = JobMonitor(layout, 2, options, lambda: stops.append("stop"), LaunchView())
    for step in range(1, 6):
        for rank in (0, 1):
            pulse(layout, rank, **{"time": clock.now, "phase": "forward", "step": step, **last})
        watch.tick()
        clock.now += 1
    watch.is_saving = is_saving
    for _ in range(100):
        watch.tick()
        clock.now += 1
    return watch, stops


def test_a_stall_is_reported_once_and_the_job_goes_on(
    layout: RunDir, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    watch, stops = stalled(layout, clock, MonitorOptions(show_ranks=()))
    assert capsys.readouterr().err.count("stacks of all ranks") == 1
    assert layout.ask_stacks.read_text() == "1"
    assert watch.stall is not None
    assert (watch.stall.ended_job, stops) == (False, [])


def test_a_log_says_for_how_long_nothing_moved_before_that_counts_as_a_stall(
    layout: RunDir, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = JobMonitor(layout, 1, MonitorOptions(show_ranks=()), lambda: None, LaunchView())
    pulse(layout, 0, time=clock.now, phase="backward", step=4)
    for _ in range(100):
        watch.tick()
        clock.now += 1
    assert "step 4, no progress for 1:30\n" in capsys.readouterr().err
    assert watch.stall is None


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_compiles_inside_a_rank_is_no_stall_unless_its_host_is_lost(
    is_lost: bool, layout: RunDir, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = JobMonitor(layout, 1, MonitorOptions(show_ranks=()), lambda: None, LaunchView())
    for step in range(1, 6):
        pulse(layout, 0, time=clock.now, phase="forward", step=step)
        watch.tick()
        clock.now += 1
    for _ in range(100):
        sampled = 1.0 if is_lost else clock.now
        layout.rank_sample(0).write_text(json.dumps({"compiling": True, "time": sampled}))
        watch.tick()
        clock.now += 1
    assert (watch.stall is not None) == is_lost
    assert ("step 5, compiling, " in capsys.readouterr().err) or is_lost


def test_a_job_that_is_to_stop_for_a_stall_is_told_once(layout: RunDir, clock: Clock) -> None:
    watch, stops = stalled(layout, clock, MonitorOptions(show_ranks=(), on_stall="stop"))
    assert stops == ["stop"]
    assert watch.stall is not None
    assert (watch.stall.ended_job, watch.stall.step) == (True, 5)


def test_a_job_that_was_asked_to_save_may_take_its_time(layout: RunDir, clock: Clock) -> None:
    watch, stops = stalled(layout, clock, MonitorOptions(show_ranks=(), on_stall="stop"), is_saving=True)
    assert (watch.stall, stops) == (None, [])


def test_a_stall_lasts_as_long_as_nothing_moves(layout: RunDir, clock: Clock) -> None:
    watch, _ = stalled(layout, clock, MonitorOptions(show_ranks=()))
    watch.end()
    assert watch.stall is not None
    assert watch.stall.seconds == 100


@pytest.mark.parametrize("is_looked_at", [True, False])
def test_a_stall_after_which_a_step_was_taken_is_forgotten_in_the_end(
    layout: RunDir, clock: Clock, is_looked_at: bool
) -> None:
    watch, _ = stalled(layout, clock, MonitorOptions(show_ranks=()))
    pulse(layout, 0, time=clock.now, phase="exiting", step=6)
    if is_looked_at:
        watch.tick()
    watch.end()
    assert watch.stall is None


def test_a_second_stall_is_reported_too_and_an_old_answer_is_no_answer(
    layout: RunDir, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = 'Current thread 0x01 (most recent call first):\n  File "/me/t.py", line 3 in f\n'
    layout.rank_stacks(0).write_text(answer)
    watch, _ = stalled(layout, clock, MonitorOptions(show_ranks=()))
    pulse(layout, 0, time=clock.now, phase="forward", step=6)
    for _ in range(100):
        watch.tick()
        clock.now += 1
    told = capsys.readouterr().err
    assert told.count("stacks of all ranks") == 2
    assert "line 3" not in told
    assert layout.ask_stacks.read_text() == "2"


def test_a_full_disk_does_not_end_the_watch(layout: RunDir, clock: Clock) -> None:
    layout.ask_stacks.with_name(".ask-stacks.partial").symlink_to("/dev/full")
    layout.metrics.symlink_to("/dev/full")
    watch, _ = stalled(layout, clock, MonitorOptions(show_ranks=()))
    watch.end()


def test_many_ranks_are_looked_at_rarely_enough(
    layout: RunDir, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def slowly(watch: JobMonitor) -> dict[int, dict[str, Any]]:
        looks.append(clock.now)
        clock.now += 0.5
        return {}

    monkeypatch.setattr(JobMonitor, "_heartbeats", slowly)
    watch = JobMonitor(layout, 500, MonitorOptions(show_ranks=()), lambda: None, LaunchView())
    while clock.now < 1100:
        watch.tick()
        clock.now += 0.2
    assert 0.5 * len(looks) <= 100 * 0.06


def test_a_job_whose_steps_are_all_skipped_says_so_once_while_it_runs(
    layout: RunDir, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = JobMonitor(layout, 1, MonitorOptions(show_ranks=()), lambda: None, LaunchView())
    for step in range(1, 9):
        pulse(layout, 0, phase="forward", step=step, taken_steps=step, skipped_steps=step)
        watch.tick()
        clock.now += 2
    warned = capsys.readouterr().err
    assert warned.count("[steps-skipped]") == 1
    assert "all 3 steps were skipped, so no weight has changed" in " ".join(warned.split())
