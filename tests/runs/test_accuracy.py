import os
from pathlib import Path

import pytest

from zlaunch.runs.accuracy import (
    accuracy_file,
    forecast_errors,
    read_accuracy,
    record_accuracy,
)
from zlaunch.runs.memory import MemoryComparison, PoolComparison
from zlaunch.runs.run import Run

RECORD = Run(Path("runs/a"), 0.0).holding(job={"stage": 2}, is_alive=False)


def compared(percent: float | None) -> MemoryComparison:
    return MemoryComparison((PoolComparison("GPU, reserved", 100, 100, percent=percent),), ())


def test_differences_are_kept_from_run_to_run(tmp_path: Path) -> None:
    file = tmp_path / "state" / "forecasts.jsonl"
    record_accuracy(file, RECORD, compared(10))
    record_accuracy(file, RECORD, compared(-2))
    assert forecast_errors(read_accuracy(file)) == [
        ("GPU, reserved", "+4.0 % on average, +10.0 % at worst, 2 runs")
    ]


def test_a_run_that_measured_nothing_adds_nothing(tmp_path: Path) -> None:
    record_accuracy(tmp_path / "forecasts.jsonl", RECORD, compared(None))
    assert not (tmp_path / "forecasts.jsonl").exists()


def test_a_place_that_cannot_be_written_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    record_accuracy(tmp_path / "file" / "forecasts.jsonl", RECORD, compared(10))


def test_lines_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "forecasts.jsonl"
    file.write_text('{"percent": {"GPU": 2}}\n{"perc\n[]\n{"percent": 3}\n')
    assert forecast_errors(read_accuracy(file)) == [("GPU", "+2.0 % on average, +2.0 % at worst, 1 run")]


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    assert read_accuracy(tmp_path / "none") == []


def test_the_state_directory_of_the_user_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert accuracy_file() == Path("/s/zlaunch/forecasts.jsonl")


def test_a_user_without_a_home_gathers_no_experience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run under a number that its password file does not know."""
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 987_654)
    record_accuracy(accuracy_file(), RECORD, compared(10))
    assert read_accuracy(accuracy_file()) == []
