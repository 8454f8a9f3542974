"""What is said of a run that has finished."""

import json
import math
from pathlib import Path

import pytest

from tests.recorded_run import write_run
from zlaunch.cli.views.achieved import achieved, current_speed, end_of_loss, loss_text
from zlaunch.cli.views.run_comparison import compare_runs
from zlaunch.cli.views.run_page import page_data
from zlaunch.rundir.record import HeartbeatRecord
from zlaunch.runs.history import RunHistory
from zlaunch.runs.run import Run
from zlaunch.runs.step_time import throughput_of

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


def test_the_speed_of_a_run_that_is_over_is_its_mean_and_that_of_a_running_one_says_of_which_steps(
    tmp_path: Path,
) -> None:
    root = write_run(tmp_path / "run", 100)
    with (root / "metrics.jsonl").open("a") as lines:
        lines.write(json.dumps({"time": 1.7e9, "tokens_per_second": 4e4}) + "\n")
    over = current_speed(Run(root))
    assert over is not None
    assert (over.text, over.unit, over.span) == ("50,412", "tokens/s", "without saving")
    (root / "how-it-ended.json").unlink()
    running = current_speed(Run(root))
    assert running is not None
    assert (running.text, running.unit, running.span) == ("40,000", "tokens/s", "last 50 steps")


def test_the_quick_throughput_is_that_of_the_time_of_a_step(tmp_path: Path) -> None:
    run = Run(write_run(tmp_path / "run", 100))
    assert run.step_time is not None
    whole = run.step_time.throughput
    quick = throughput_of(run)
    assert (quick.samples_per_second, quick.tokens_per_second) == (
        whole.samples_per_second,
        whole.tokens_per_second,
    )


def test_the_loss_in_a_comparison_and_on_the_pages_is_the_one_in_the_sentence(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", 100)
    file = root / "ranks/rank-0.pulse.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **FELL}))
    run = Run(root)
    figures = {name: first for name, first, _ in compare_runs(run, run).figures}
    assert f"loss {figures['loss']} ({figures['the last loss is']})" in achieved(run)
    assert page_data(run, RunHistory(root))["loss"] == {
        "ends": figures["loss"],
        "remark": figures["the last loss is"],
    }
    assert end_of_loss(run.heartbeats[0]) == (2.5, 5)


def test_runs_of_different_length_are_compared_at_the_last_step_of_the_shorter_one(tmp_path: Path) -> None:
    longer, shorter = Run(write_run(tmp_path / "a", 100)), Run(write_run(tmp_path / "b", 40))
    for run, last in ((longer, 100), (shorter, 40)):
        lines = [json.dumps({"step": step, "step_loss": 200.0 - step}) for step in range(1, last + 1)]
        (run.root / "steps.jsonl").write_text("\n".join(lines) + "\n")
    rows = [row for row in compare_runs(longer, shorter).figures if row[0].startswith("loss at")]
    assert rows == [("loss at step 40", "160.000", "160.000")]
