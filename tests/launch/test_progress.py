"""How far a job is: laws that hold whatever its ranks say."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zlaunch.launch.progress import (
    LONG_PATIENCE,
    PATIENCE,
    Progress,
    Snapshot,
    loss_line,
    no_progress,
    phase_shown,
    plain_line,
    progress_line,
)
from zlaunch.rundir import phases
from zlaunch.rundir.read import conform
from zlaunch.rundir.record import HeartbeatRecord

numbers = st.none() | st.floats() | st.integers(-5, 10**12) | st.just("nan")
pulses = st.fixed_dictionaries(
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
looks = st.lists(
    st.builds(
        Snapshot,
        time=st.floats(0, 1e6),
        pulses=st.dictionaries(st.integers(0, 3), pulses, max_size=4),
        cpu_seconds=st.none() | st.floats(0, 1e6),
    ),
    max_size=6,
).map(lambda found: sorted(found, key=lambda look: look.time))


def course_of(seen: list[Snapshot]) -> Progress:
    course = no_progress(0.0)
    for look in seen:
        course = course.after(look)
    return course


def pulse(time: float, phase: str = phases.FORWARD, step: int = 0, **more: Any) -> HeartbeatRecord:
    return conform({"time": time, "phase": phase, "step": step, **more}, HeartbeatRecord)


def stepping(seconds: float, count: int, offset: float = 0.0, **more: Any) -> Progress:
    """Take a step every so many seconds, as the clock of rank 0 says, which is `offset` ahead."""
    return course_of(
        [
            Snapshot(n * seconds, {0: pulse(offset + n * seconds, phases.TRAINING, n, **more)})
            for n in range(1, count + 1)
        ]
    )


@given(looks, st.integers(0, 200), st.none() | st.integers(0, 10**13))
def test_the_line_is_never_wider_than_asked_and_never_more_than_one(
    seen: list[Snapshot], width: int, rss: int | None
) -> None:
    line = progress_line(course_of(seen), 4, rss, width)
    assert len(line) <= width
    assert line.isprintable()
    assert plain_line(course_of(seen), 4).isprintable()


@given(looks)
def test_what_is_left_is_never_less_than_nothing(seen: list[Snapshot]) -> None:
    left, speed = course_of(seen).seconds_left, course_of(seen).tokens_per_second(4)
    assert left is None or left >= 0
    assert speed is None or speed > 0


@given(looks)
def test_the_steps_that_count_only_rise(seen: list[Snapshot]) -> None:
    steps = [step for step, _, _ in course_of(seen).steps]
    assert steps == sorted(set(steps))


@given(looks, st.floats(0, 1e6))
def test_a_job_that_says_something_new_is_not_stalled(seen: list[Snapshot], least: float) -> None:
    last = 1e6 + 1
    course = course_of(seen).after(Snapshot(last, {2: pulse(1e11)}))
    assert course.stalled_seconds(last, least) is None


@given(looks)
def test_a_job_that_never_said_anything_is_not_stalled(seen: list[Snapshot]) -> None:
    silent = [Snapshot(look.time, {}, look.cpu_seconds) for look in seen]
    assert course_of(silent).stalled_seconds(1e9) is None


@given(st.floats(-1e9, 1e9), st.floats(0.01, 100.0))
def test_the_clock_of_another_host_changes_nothing(offset: float, seconds: float) -> None:
    there, here = stepping(seconds, 6, 2e9 + offset, steps=10), stepping(seconds, 6, 2e9, steps=10)
    assert there.seconds_left == pytest.approx(here.seconds_left, rel=1e-3)
    assert there.stalled_seconds(1e4) == here.stalled_seconds(1e4)
    waiting = course_of([Snapshot(3.0, {0: pulse(offset, phases.LOADING, since=offset)})])
    assert "0:07" in progress_line(
        waiting.after(Snapshot(10.0, {0: pulse(offset, phases.LOADING)})), 1, None, 80
    )


def test_the_speed_is_the_median_of_the_last_steps() -> None:
    course = stepping(2.0, 20, steps=30)
    slow = course.after(Snapshot(140.0, {0: pulse(140.0, phases.TRAINING, 21, steps=30)}))
    assert slow.seconds_per_step == 2.0
    assert slow.seconds_left == 18.0


@pytest.mark.parametrize("total", [None, 0, -1])
def test_without_a_known_end_there_is_no_bar_and_no_time_left(total: int | None) -> None:
    course = stepping(1.0, 5, steps=total)
    assert course.seconds_left is None
    assert progress_line(course, 1, None, 80).startswith("step 5")


def test_a_second_training_in_one_script_counts_anew() -> None:
    course = (
        stepping(1.0, 5)
        .after(Snapshot(6.0, {0: pulse(6.0, step=1)}))
        .after(Snapshot(9.0, {0: pulse(9.0, step=2)}))
    )
    assert course.seconds_per_step == 3.0


def test_a_step_may_take_five_times_the_median_and_never_less_than_was_asked() -> None:
    assert stepping(1.0, 5).patience() == 60.0
    assert stepping(30.0, 5).patience() == 150.0
    assert stepping(1.0, 5).patience(least=3.0) == 5.0


@pytest.mark.parametrize("phase", phases.ALL)
def test_outside_of_a_step_patience_is_that_of_the_phase(phase: str) -> None:
    course = stepping(1.0, 5).after(Snapshot(6.0, {1: pulse(6.0, phase)}))
    assert course.patience() == (60.0 if phase in phases.STEPS else 60.0 * LONG_PATIENCE)
    alone = course_of([Snapshot(6.0, {0: pulse(6.0, phase)})])
    assert alone.patience() == 60.0 * PATIENCE.get(phase, LONG_PATIENCE)
    assert alone.patience(least=1.0) == PATIENCE.get(phase, LONG_PATIENCE)


def test_the_first_step_has_the_patience_of_a_start() -> None:
    course = course_of([Snapshot(1.0, {0: pulse(1.0, phases.FORWARD)})])
    assert course.stalled_seconds(1.0 + 60.0 * LONG_PATIENCE) is None
    assert course.stalled_seconds(2.0 + 60.0 * LONG_PATIENCE) == 1.0 + 60.0 * LONG_PATIENCE


@pytest.mark.parametrize(("cores", "is_stalled"), [(0.0, True), (0.001, True), (0.5, False), (None, False)])
def test_a_script_that_says_nothing_more_moves_as_long_as_it_computes(
    cores: float | None, is_stalled: bool
) -> None:
    said = {0: pulse(1.0, phases.STARTING)}
    seen = [Snapshot(5.0 * n, said, None if cores is None else 5.0 * n * cores) for n in range(500)]
    assert (course_of(seen).stalled_seconds(2500.0) is not None) == is_stalled


def test_a_rank_that_cannot_be_read_for_a_moment_still_counts() -> None:
    said = {0: pulse(1.0, step=3, phase=phases.TRAINING)}
    course = course_of([Snapshot(1.0, said), Snapshot(2.0, {}), Snapshot(3.0, said)])
    assert (course.step, course.moved) == (3, 1.0)


def test_what_comes_before_the_first_step_is_the_first_of_its_kind() -> None:
    assert phase_shown(pulse(0.0, phases.BACKWARD)) == "first backward"
    assert phase_shown(pulse(0.0, phases.BACKWARD, 1)) == "backward"
    assert phase_shown({}) == "starting"


def test_what_matters_most_comes_first_in_a_line() -> None:
    more = {"loss": math.nan, "learning_rate": 3e-4}
    course = course_of(
        [
            Snapshot(n, {0: pulse(n, phases.TRAINING, n, steps=10, tokens=n * 8192, **more)})
            for n in range(1, 6)
        ]
    )
    line = progress_line(course, 2, 3 << 30, 200)
    assert line == "[======>     ] 5/10  0:05 left  loss nan  lr 0.0003  16.4k tok/s  3.0 GiB a rank"
    assert progress_line(course, 2, 3 << 30, 40) == "[======>     ] 5/10  0:05 left  loss nan"
    assert "5/10  nothing new for 0:15  0:05 left" in progress_line(
        course.after(Snapshot(20.0, {})), 2, None, 80
    )
    assert plain_line(course, 2) == "step 5 of 10, 0:05 left, loss nan, lr 0.0003, 16.4k tok/s"


def test_a_script_that_has_begun_does_not_start_again() -> None:
    seen = (phases.STARTING, phases.IMPORTING, phases.STARTING, phases.LOADING, phases.STARTING)
    course, shown = no_progress(0.0), []
    for moment, phase in enumerate(seen):
        course = course.after(Snapshot(5.0 * moment, {0: pulse(moment, phase)}))
        shown.append(progress_line(course, 1, None, 80)[15:-5])
    assert shown == ["starting", "importing", "preparing", "loading the model", "preparing"]


@pytest.mark.parametrize(("phase", "step"), [(phases.EXITING, 3), (phases.SAVING, 10)])
def test_a_job_that_takes_no_further_step_has_no_time_left(phase: str, step: int) -> None:
    seen = [Snapshot(float(n), {0: pulse(n, phases.TRAINING, n, steps=10)}) for n in range(1, step + 1)]
    course = course_of([*seen, Snapshot(step + 0.5, {0: pulse(step + 0.5, phase, step, steps=10)})])
    line = progress_line(course, 1, None, 80)
    assert phase in line
    assert "left" not in line


def test_how_far_the_loss_fell_is_said_with_the_step() -> None:
    assert (
        loss_line({"first_loss": 5.261, "loss": 2.4961, "loss_step": 64, "step": 70})
        == "loss 5.261 -> 2.496 at step 64"
    )


def test_a_loss_that_was_told_once_fell_from_nowhere() -> None:
    assert loss_line({"first_loss": 5.261, "loss": 5.261, "loss_step": 1}) == "loss 5.261 at step 1"


@pytest.mark.parametrize("pulse", [{}, {"step": 3}, {"loss": None, "first_loss": None, "step": 3}])
def test_nothing_is_said_of_a_loss_that_was_not_reported(pulse: HeartbeatRecord) -> None:
    assert loss_line(pulse) is None
