"""What is said of a run that has finished."""

import json
import math
from pathlib import Path

import pytest

from tests.recorded_run import write_run
from zlaunch.cli.views.achieved import achieved, loss_text
from zlaunch.rundir.record import HeartbeatRecord
from zlaunch.runs.run import Run

FELL: HeartbeatRecord = {"first_loss": 5.2, "loss": 9.9, "end_loss": 2.5, "end_losses": 5, "loss_step": 64}


def test_steps_loss_speed_and_memory_are_said(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", 100)
    file = root / "ranks/rank-0.pulse.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **FELL}))
    assert achieved(Run(root)) == (
        "100 steps, loss 5.200 -> 2.500 (median of the last 5), 50,412 tokens/s, "
        "at most 66.0 GiB of GPU memory a rank"
    )


def test_a_run_that_resumed_says_which_steps_it_took(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", 100)
    file = root / "ranks/rank-0.pulse.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "first_step": 60}))
    assert achieved(Run(root)).startswith("steps 61 to 100, ")


def test_nothing_is_said_of_a_script_without_steps(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", 100)
    (root / "ranks/rank-0.pulse.json").write_text("{}")
    assert achieved(Run(root)) == ""


@pytest.mark.parametrize(
    ("heartbeat", "text"),
    [
        (FELL, "loss 5.200 -> 2.500 (median of the last 5)"),
        ({**FELL, "loss": math.nan}, "loss 5.200 -> nan"),
        ({"first_loss": 5.261, "loss": 5.261}, "loss 5.261"),
        ({}, None),
        ({"loss": None, "first_loss": None}, None),
    ],
)
def test_a_loss_is_said_with_its_median_at_the_end(heartbeat: HeartbeatRecord, text: str | None) -> None:
    assert loss_text(heartbeat) == text
