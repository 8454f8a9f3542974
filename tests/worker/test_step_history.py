"""The history of a run's steps, as the hook in the first rank writes it."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from zlaunch.rundir import phases
from zlaunch.worker.hook.heartbeat import Heartbeat
from zlaunch.worker.hook.step_history import StepHistory


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "steps.jsonl"


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def rows(file: Path, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(line.get(name) for name in names) for line in lines(file)]


def test_a_trainer_tells_the_loss_of_the_engine_before_the_step_and_logs_its_own_after_it(file: Path) -> None:
    history = StepHistory(file, {})
    for step in (1, 2, 3):
        history.note({"step_loss": 9.0 - step, "seen_loss_step": step}, 64 * step)
        history.note({"step": step}, 64 * step)
        if step == 2:
            history.note({"step": 2, "loss": 7.5, "learning_rate": 1e-3}, 128)
    history.end()
    assert rows(file, "step", "step_loss", "loss", "learning_rate", "tokens") == [
        (1, 8.0, None, None, 64),
        (2, 7.0, 7.5, 1e-3, 128),
        (3, 6.0, None, None, 192),
    ]


def test_the_file_grows_ever_more_slowly_and_keeps_every_spike(file: Path) -> None:
    history = StepHistory(file, {}, lines=10)
    for step in range(1, 1001):
        history.note({"step": step, "loss": 99.0 if step == 701 else 1.0}, None)
    history.end()
    found = lines(file)
    assert len(found) < 80
    assert sum(line.get("count", 1) for line in found) == 1000
    assert max(line.get("range", {}).get("loss", [0, 0])[1] for line in found) == 99.0


def test_a_loss_that_is_not_a_number_is_counted_and_does_not_hide_the_others(file: Path) -> None:
    history = StepHistory(file, {}, lines=1)
    for step, loss in enumerate((1.0, math.nan, 2.0, math.inf), start=1):
        history.note({"step": step, "loss": loss}, None)
    history.end()
    assert rows(file, "step", "count", "range", "not_finite")[1:] == [
        (3, 2, {}, {"loss": 1}),
        (4, None, None, None),
    ]


def test_a_script_that_trains_twice_counts_from_the_start_again(file: Path) -> None:
    history = StepHistory(file, {})
    for step in (1, 2, 1, 2):
        history.note({"step": step, "loss": 1.0}, None)
    history.end()
    assert rows(file, "step") == [(1,), (2,), (1,), (2,)]


def test_a_phase_without_steps_is_written_with_its_time(file: Path) -> None:
    spent: dict[str, float] = {}
    history = StepHistory(file, spent)
    began = history._spent_written
    for phase, seconds, end in (
        (phases.IMPORTING, 0.4, 0.4),
        (phases.LOADING, 5.0, 5.4),
        (phases.FORWARD, 0.1, 5.5),
    ):
        spent[phase] = seconds
        history.phase_ended(phase, began + end)
    assert rows(file, "count", "phases") == [(0, {phases.IMPORTING: 0.4, phases.LOADING: 5.0})]


def test_all_the_time_of_all_phases_is_written_in_the_end(file: Path) -> None:
    spent = {phases.FORWARD: 0.0}
    history = StepHistory(file, spent)
    for step in range(1, 100):
        spent[phases.FORWARD] += 0.25
        history.phase_ended(phases.FORWARD, history._spent_written + 0.2)
        history.note({"step": step}, None)
    history.end()
    assert sum(line.get("phases", {}).get(phases.FORWARD, 0.0) for line in lines(file)) == 99 * 0.25


def test_a_history_that_cannot_be_written_does_not_reach_the_script(tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    beat = Heartbeat(tmp_path / "pulse", tmp_path / "full")
    for step in range(3):
        beat.enter(phases.TRAINING, step=step, loss=1.0)
    assert json.loads((tmp_path / "pulse").read_text())["step"] == 2


def test_a_forked_process_adds_nothing(tmp_path: Path, file: Path) -> None:
    beat = Heartbeat(tmp_path / "pulse", file)
    if (child := os.fork()) == 0:
        for step in (5, 6, 7):
            beat.enter(phases.TRAINING, step=step)
        os._exit(0)
    os.waitpid(child, 0)
    assert file.read_bytes() == b""
