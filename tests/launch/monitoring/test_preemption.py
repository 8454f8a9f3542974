"""Which step all ranks save after: laws, however fast they step and whenever they look."""

import math
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.facts import facts_of
from tests.making import script
from zlaunch.cli.views.launch import LaunchView
from zlaunch.job.spec import JobSpec, PreemptOptions
from zlaunch.launch.make_plan import make_plan
from zlaunch.launch.monitoring import preemption
from zlaunch.launch.monitoring.preemption import (
    LATENCY_SECONDS,
    SHARED_LATENCY_SECONDS,
    SaveAndStop,
    save_step,
)
from zlaunch.launch.monitoring.progress import no_progress
from zlaunch.launch.time_limit import TimeLimit
from zlaunch.rundir.layout import RunDir

seconds = st.floats(0.0005, 600.0)
latencies = st.sampled_from([LATENCY_SECONDS, SHARED_LATENCY_SECONDS])


@given(
    last=st.integers(1, 10**6),
    usual=seconds,
    steps=st.lists(st.floats(0.51, 3.0), min_size=1, max_size=200),
    since=st.floats(0.0, 1.0),
    latency=latencies,
)
def test_no_rank_has_ended_the_chosen_step_when_all_of_them_see_it(
    last: int, usual: float, steps: list[float], since: float, latency: float
) -> None:
    """A rank has ended `last`, and takes its next steps at its own pace; it is asked within the first of them."""
    elapsed = since * steps[0] * usual
    chosen = save_step(last, elapsed, usual, latency, math.inf)
    ended, now = last, 0.0
    while (now := now + steps[(ended - last) % len(steps)] * usual) <= elapsed + latency:
        ended += 1
        assert ended < chosen


@given(last=st.integers(1, 10**6), usual=seconds, since=st.floats(0.0, 1.0), latency=latencies)
def test_the_chosen_step_ends_soon(last: int, usual: float, since: float, latency: float) -> None:
    chosen = save_step(last, since * usual, usual, latency, math.inf)
    assert last < chosen
    assert (chosen - last - 3) * usual <= 2 * latency


@given(
    last=st.integers(1, 10**6),
    usual=seconds,
    since=st.floats(0.0, 1.0),
    latency=latencies,
    within=st.floats(1.0, 600.0),
)
def test_little_time_leaves_most_of_it_to_the_save_but_no_rank_behind(
    last: int, usual: float, since: float, latency: float, within: float
) -> None:
    needed = since * usual + latency
    more = save_step(last, since * usual, usual, latency, within) - last
    assert more * usual >= needed * (1 - 1e-9)
    assert (more - 1) * usual <= max(needed, within / 3) * (1 + 1e-9)


def test_a_long_step_that_has_just_begun_is_the_one() -> None:
    assert save_step(7, 4.0, 30.0, LATENCY_SECONDS, 300.0) == 8
    assert save_step(7, 20.0, 30.0, LATENCY_SECONDS, 300.0) == 9


def test_steps_that_take_no_time_do_not_divide_by_it() -> None:
    assert save_step(1, 0.0, 0.0, LATENCY_SECONDS, math.inf) == 5002


def test_nobody_has_more_time_to_save_than_until_the_time_limit(tmp_path: Path) -> None:
    plan = make_plan(facts_of(JobSpec(Path("train.py")), script(), layout=RunDir(tmp_path)))
    limited = replace(plan, limit=TimeLimit(time.time() + 90.0, "a limit", 3600.0))
    for each, within in ((plan, 300.0), (limited, 90.0)):
        saving = SaveAndStop(each, PreemptOptions(), {}, lambda: None, LaunchView())
        saving.on_signal(signal.SIGUSR1)
        found = saving.evidence()
        assert found is not None
        assert found.within == pytest.approx(within, abs=5)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which stands still until a test changes it."""
    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0])
    monkeypatch.setattr(preemption, "time", clock)
    return now


def test_a_preemption_leaves_no_more_time_to_a_save_that_was_asked_for_before(
    tmp_path: Path, now: list[float]
) -> None:
    ended = list[float]()
    plan = make_plan(facts_of(JobSpec(Path("train.py")), script(), layout=RunDir(tmp_path)))
    options = PreemptOptions(on_preempt="save")
    saving = SaveAndStop(plan, options, {}, lambda: ended.append(now[0]), LaunchView())
    saving._why_not = "it cannot"
    saving.on_signal(signal.SIGUSR1)
    now[0] += 10.0
    saving.on_signal(signal.SIGTERM)
    last = now[0] + options.seconds(is_preempted=True)
    for now[0] in (last - 1.0, last + 1.0):
        saving.tick(no_progress(now[0]))
    assert ended == [last + 1.0]


def test_the_time_that_a_save_had_is_told_as_it_was_in_the_end(tmp_path: Path, now: list[float]) -> None:
    plan = make_plan(facts_of(JobSpec(Path("train.py")), script(), layout=RunDir(tmp_path)))
    options = PreemptOptions(on_preempt="save")
    saving, within = SaveAndStop(plan, options, {}, lambda: None, LaunchView()), []
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGTERM):
        saving.on_signal(number)
        now[0] += 10.0
        found = saving.evidence()
        within.append(found and found.within)
    preempted = options.seconds(is_preempted=True)
    assert within == [options.seconds(is_preempted=False), 10.0 + preempted, 10.0 + preempted]
