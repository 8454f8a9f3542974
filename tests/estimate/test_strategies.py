import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.asking import question
from zlaunch.estimate.strategies import STRATEGIES, Strategy, apply_strategy, fastest_first
from zlaunch.job.spec import parse_offload


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: str(strategy.options))
def test_a_job_can_be_put_on_every_strategy(strategy: Strategy) -> None:
    zero = apply_strategy(question(), strategy).resolve().config.zero_optimization
    assert zero.stage == strategy.stage
    devices = {name.removeprefix("offload_"): str(one.device) for name, one in zero.offloads.items()}
    asked = {"optimizer": strategy.offload.optimizer, "param": strategy.offload.param}
    assert devices == {part: device for part, device in asked.items() if device != "none"}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: str(strategy.options))
def test_the_words_of_a_strategy_lead_to_it(strategy: Strategy) -> None:
    words = str(strategy.options).split()
    said = dict(zip(words[::2], words[1::2], strict=True))
    offload = parse_offload(said.get("--offload", "none"))
    job = apply_strategy(question(stage=strategy.stage, offload=offload), strategy).job
    assert int(said["--stage"]) == strategy.stage
    assert (job.stage, offload.optimizer) == (strategy.stage, strategy.offload.optimizer)
    assert (
        offload.param == strategy.offload.param
        or (strategy.stage == 3 and offload.param is None)
        or strategy.stage < 3
    )


def test_nothing_is_chosen_of_nothing() -> None:
    assert fastest_first({}) == []


def test_the_fastest_that_fits_is_chosen() -> None:
    assert fastest_first({1: 2.0, 2: 1.0, 3: 3.0})[0] == 2


def test_of_two_that_are_as_fast_the_lower_is_chosen() -> None:
    assert fastest_first({1: 1.04, 2: 1.0, 3: 3.0})[0] == 1


def test_where_no_speed_is_known_the_lowest_is_chosen() -> None:
    assert fastest_first({3: None, 2: None})[0] == 2


@given(st.dictionaries(st.integers(0, 7), st.floats(0.1, 100), min_size=1))
def test_what_is_chosen_is_never_much_slower_than_another(seconds: dict[int, float]) -> None:
    chosen = fastest_first(seconds)[0]
    assert seconds[chosen] <= 1.06 * min(seconds.values())


def test_the_ladder_needs_no_directory_on_nvme() -> None:
    job = apply_strategy(question(), STRATEGIES[-1]).job
    assert job.nvme_dir is not None


def test_steps_that_are_too_short_to_tell_apart_leave_the_lowest_strategy() -> None:
    assert fastest_first({0: 0.002, 1: 0.001})[0] == 0
