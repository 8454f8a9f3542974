"""The settings are those that DeepSpeed's own tool tries."""

from typing import Any

import pytest

from zlaunch.launch.nvme.measure import SPACE, settings
from zlaunch.launch.nvme.tune import Measurement as Found
from zlaunch.launch.nvme.tune import _best


def test_each_setting_is_tried_once_and_the_first_ones_are_mixed() -> None:
    found = settings()
    assert len({str(one) for one in found}) == len(found) == 64
    assert all(len({one[name] for one in found[:16]}) == len(values) for name, values in SPACE.items())


@pytest.mark.packages
def test_the_space_is_that_of_ds_nvme_tune() -> None:
    from deepspeed.nvme.perf_run_sweep import DEFAULT_SWEEP_CONFIG

    sizes = {"1M": 1 << 20, "8M": 8 << 20}
    theirs = {name: {sizes.get(one, one) for one in values} for name, values in DEFAULT_SWEEP_CONFIG.items()}
    assert {name: set(values) for name, values in SPACE.items()} == theirs


def rounds(name: str, *speeds: tuple[float, float]) -> list[dict[str, Any]]:
    return [{"setting": {"io_parallel": name}, "read": read, "write": write} for read, write in speeds]


def best(**measured: list[dict[str, Any]]) -> Found:
    return _best(measured)[0]


def test_the_best_reads_and_writes_the_same_amount_in_the_least_time() -> None:
    found = best(even=rounds("even", (2.0, 2.0)), uneven=rounds("uneven", (5.0, 1.0)))
    assert found.setting == {"io_parallel": "even"}


def test_a_lucky_measurement_does_not_win_against_settings_that_were_measured_again() -> None:
    lucky = rounds("lucky", (9.0, 9.0))
    steady = rounds("steady", (3.0, 3.0), (2.8, 2.8), (3.1, 3.1))
    assert best(lucky=lucky, steady=steady).setting == {"io_parallel": "steady"}
