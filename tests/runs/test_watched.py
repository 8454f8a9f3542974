"""Runs that are watched are read as often as they change, and no more often than they can be read."""

from pathlib import Path

import pytest

from tests.recorded_run import write_run
from zlaunch.runs import watched
from zlaunch.runs.watched import WatchedRun, WatchedRuns


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "train", 3)


def test_the_records_of_a_run_are_not_read_for_every_question(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = WatchedRun(root)
    assert one.run is one.run
    monkeypatch.setattr(watched, "OVER_SECONDS", 0.0)
    monkeypatch.setattr(watched, "LOOK_SHARE", 1e9)
    other = WatchedRun(root)
    assert other.run is not other.run


def test_directories_are_not_listed_for_every_question(root: Path) -> None:
    listed: list[int] = []
    runs = WatchedRuns(lambda: listed.append(1) or [root])  # type: ignore[func-returns-value]
    assert list(runs.all()) == list(runs.all()) == ["train"]
    assert listed == [1]


def test_runs_of_the_same_name_are_told_apart_by_their_directories(root: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path / "more" / "train", 3)
    assert list(WatchedRuns(lambda: [root, other]).all()) == [str(root), str(other)]
