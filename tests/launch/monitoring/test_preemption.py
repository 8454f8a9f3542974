"""Which step all ranks save after: laws, however fast they step and whenever they look."""

from hypothesis import given
from hypothesis import strategies as st

from zlaunch.launch.monitoring.preemption import LATENCY_SECONDS, SHARED_LATENCY_SECONDS, save_step

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
    chosen = save_step(last, elapsed, usual, latency)
    ended, now = last, 0.0
    while (now := now + steps[(ended - last) % len(steps)] * usual) <= elapsed + latency:
        ended += 1
        assert ended < chosen


@given(last=st.integers(1, 10**6), usual=seconds, since=st.floats(0.0, 1.0), latency=latencies)
def test_the_chosen_step_ends_soon(last: int, usual: float, since: float, latency: float) -> None:
    chosen = save_step(last, since * usual, usual, latency)
    assert last < chosen
    assert (chosen - last - 3) * usual <= 2 * latency


def test_a_long_step_that_has_just_begun_is_the_one() -> None:
    assert save_step(7, 4.0, 30.0, LATENCY_SECONDS) == 8
    assert save_step(7, 20.0, 30.0, LATENCY_SECONDS) == 9


def test_steps_that_take_no_time_do_not_divide_by_it() -> None:
    assert save_step(1, 0.0, 0.0, LATENCY_SECONDS) == 5002
