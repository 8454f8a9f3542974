"""What limits the speed is said while a job runs."""

from pathlib import Path

import pytest

from zlaunch.cli.views.launch import LaunchView
from zlaunch.launch.monitoring import speed_watch
from zlaunch.launch.monitoring.speed_watch import LOOK_SECONDS, SpeedWatch


def test_a_job_goes_on_whatever_is_wrong_with_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_run: object) -> None:
        raise TypeError

    monkeypatch.setattr(speed_watch, "step_time", broken)
    watch = SpeedWatch(tmp_path, 0.0, LaunchView())
    watch.tick(LOOK_SECONDS + 1)
    assert watch.mfu is None
