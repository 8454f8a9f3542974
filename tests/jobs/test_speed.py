"""Bottlenecks made on purpose in real jobs, and what is said of them; `bench.bottlenecks` has all, in each loop."""

from pathlib import Path

import pytest

from bench.bottlenecks import BOTTLENECKS, Job, is_right, verdicts

pytestmark = [pytest.mark.job, pytest.mark.full]


@pytest.mark.parametrize(
    ("name", "loop", "launcher"),
    [
        ("slow loader", "trainer", "torchrun"),
        ("slow loader", "accelerate", "deepspeed"),
        ("slow loader", "engine", "torchrun"),
        ("slow rank", "engine", "deepspeed"),
        ("needless checkpointing", "accelerate", "torchrun"),
        ("jump at step 30", "engine", "torchrun"),
    ],
)
def test_a_bottleneck_is_what_limits_a_job(name: str, loop: str, launcher: str, tmp_path: Path) -> None:
    bottleneck = BOTTLENECKS[name]
    found = verdicts(tmp_path, Job(loop, launcher), bottleneck)
    assert is_right(bottleneck, found), found
