"""How far a job is: laws that hold whatever its ranks say."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.each import each
from zlaunch.launch.monitoring.progress import (
    LONG_PATIENCE,
    PATIENCE,
    Progress,
    Snapshot,
    no_progress,
    phase_shown,
)
from zlaunch.rundir import phases
from zlaunch.rundir.read import conform
from zlaunch.rundir.record import HeartbeatRecord

numbers = st.none() | st.floats() | st.integers(-5, 10**12) | st.just("nan")
heartbeats = st.fixed_dictionaries(
    {},
    optional={
        "time": st.floats(0, 1e10),
        "since": st.floats(-1e10, 1e10),
        "phase": st.sampled_from([*phases.ALL, "", "something else"]),
        "step": st.integers(0, 10**7),
        "steps": st.none() | st.integers(-1, 10**7),
        "tokens": st.none() | st.integers(0, 10**13),
        "loss": numbers,
        "learning_rate": numbers,
    },
)
snapshots = st.lists(
    st.builds(
        Snapshot,
        time=st.floats(0, 1e6),
        heartbeats=st.dictionaries(st.integers(0, 3), heartbeats, max_size=4),
        cpu_seconds=st.none() | st.floats(0, 1e6),
    ),
    max_size=6,
).map(lambda found: sorted(found, key=lambda snapshot: snapshot.time))


def progress_of(seen: list[Snapshot]) -> Progress:
    progress = no_progress(0.0)
    for snapshot in seen:
        progress = progress.after(snapshot)
    return progress


def heartbeat(time: float, phase: str = phases.FORWARD, step: int = 0, **more: Any) -> HeartbeatRecord:
    return conform({"time": time, "phase": phase, "step": step, **more}, HeartbeatRecord)


def stepping(seconds: float, count: int, offset: float = 0.0, **more: Any) -> Progress:
    """Take a step every so many seconds, as the clock of rank 0 says, which is `offset` ahead."""
    return progress_of(
        [
            Snapshot(n * seconds, {0: heartbeat(offset + n * seconds, phases.TRAINING, n, **more)})
            for n in range(1, count + 1)
        ]
    )


@given(snapshots)
def test_what_is_left_is_never_less_than_nothing(seen: list[Snapshot]) -> None:
    left, speed = progress_of(seen).seconds_left, progress_of(seen).tokens_per_second(4)
    assert left is None or left >= 0
    assert speed is None or speed > 0


@given(snapshots)
def test_the_steps_that_count_only_rise(seen: list[Snapshot]) -> None:
    steps = [step for step, _, _ in progress_of(seen).steps]
    assert steps == sorted(set(steps))


@given(snapshots, st.floats(0, 1e6))
def test_a_job_that_says_something_new_is_not_stalled(seen: list[Snapshot], least: float) -> None:
    last = 1e6 + 1
    progress = progress_of(seen).after(Snapshot(last, {2: heartbeat(1e11)}))
    assert progress.stalled_seconds(last, least) is None


@given(snapshots)
def test_a_job_that_never_said_anything_is_not_stalled(seen: list[Snapshot]) -> None:
    silent = [Snapshot(snapshot.time, {}, snapshot.cpu_seconds) for snapshot in seen]
    assert progress_of(silent).stalled_seconds(1e9) is None


@given(st.floats(-1e9, 1e9), st.floats(0.01, 100.0))
def test_the_clock_of_another_host_changes_nothing(offset: float, seconds: float) -> None:
    there, here = stepping(seconds, 6, 2e9 + offset, steps=10), stepping(seconds, 6, 2e9, steps=10)
    assert there.seconds_left == pytest.approx(here.seconds_left, rel=1e-3)
    assert there.stalled_seconds(1e4) == here.stalled_seconds(1e4)
    waiting = progress_of([Snapshot(3.0, {0: heartbeat(offset, phases.LOADING, since=offset)})])
    assert waiting.after(Snapshot(10.0, {0: heartbeat(offset, phases.LOADING)})).phase_began == 3.0


def test_the_speed_is_the_median_of_the_last_steps() -> None:
    progress = stepping(2.0, 20, steps=30)
    slow = progress.after(Snapshot(140.0, {0: heartbeat(140.0, phases.TRAINING, 21, steps=30)}))
    assert slow.seconds_per_step == 2.0
    assert slow.seconds_left == 18.0


def test_a_second_training_in_one_script_counts_anew() -> None:
    progress = (
        stepping(1.0, 5)
        .after(Snapshot(6.0, {0: heartbeat(6.0, step=1)}))
        .after(Snapshot(9.0, {0: heartbeat(9.0, step=2)}))
    )
    assert progress.seconds_per_step == 3.0


def test_a_step_may_take_five_times_the_median_and_never_less_than_was_asked() -> None:
    assert stepping(1.0, 5).patience() == 60.0
    assert stepping(30.0, 5).patience() == 150.0
    assert stepping(1.0, 5).patience(least=3.0) == 5.0


@each("phase", phases.ALL)
def test_outside_of_a_step_patience_is_that_of_the_phase(phase: str) -> None:
    progress = stepping(1.0, 5).after(Snapshot(6.0, {1: heartbeat(6.0, phase)}))
    assert progress.patience() == (60.0 if phase in phases.STEPS else 60.0 * LONG_PATIENCE)
    alone = progress_of([Snapshot(6.0, {0: heartbeat(6.0, phase)})])
    assert alone.patience() == 60.0 * PATIENCE.get(phase, LONG_PATIENCE)
    assert alone.patience(least=1.0) == PATIENCE.get(phase, LONG_PATIENCE)


def test_the_first_step_has_the_patience_of_a_start() -> None:
    progress = progress_of([Snapshot(1.0, {0: heartbeat(1.0, phases.FORWARD)})])
    assert progress.stalled_seconds(1.0 + 60.0 * LONG_PATIENCE) is None
    assert progress.stalled_seconds(2.0 + 60.0 * LONG_PATIENCE) == 1.0 + 60.0 * LONG_PATIENCE


def test_after_one_step_the_next_may_take_five_times_what_was_asked() -> None:
    first = progress_of([Snapshot(1.0, {0: heartbeat(1.0, phases.FORWARD, 4)})])
    assert first.patience(least=3.0) == 15.0


@pytest.mark.parametrize(("cores", "is_stalled"), [(0.0, True), (0.001, True), (0.5, False), (None, False)])
def test_a_script_that_says_nothing_more_moves_as_long_as_it_computes(
    cores: float | None, is_stalled: bool
) -> None:
    said = {0: heartbeat(1.0, phases.STARTING)}
    seen = [Snapshot(5.0 * n, said, None if cores is None else 5.0 * n * cores) for n in range(500)]
    assert (progress_of(seen).stalled_seconds(2500.0) is not None) == is_stalled


def test_a_rank_that_cannot_be_read_for_a_moment_still_counts() -> None:
    said = {0: heartbeat(1.0, step=3, phase=phases.TRAINING)}
    progress = progress_of([Snapshot(1.0, said), Snapshot(2.0, {}), Snapshot(3.0, said)])
    assert (progress.step, progress.moved) == (3, 1.0)


def test_what_comes_before_the_first_step_is_the_first_of_its_kind() -> None:
    assert phase_shown(heartbeat(0.0, phases.BACKWARD)) == "first backward"
    assert phase_shown(heartbeat(0.0, phases.BACKWARD, 1)) == "backward"
    assert phase_shown({}) == "starting"
