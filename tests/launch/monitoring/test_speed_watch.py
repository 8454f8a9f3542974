"""What limits the speed is said while a job runs."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from zlaunch.cli.views.launch import LaunchView
from zlaunch.diagnosis.verdict import Verdict
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


def test_what_costs_time_is_said_once_and_only_if_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter(["a", "", "a", "b", "b", "b", "a", "a"])

    def found(_run: object) -> object:
        code = next(looks)
        losses = [SimpleNamespace(verdict=Verdict(code, f"{code} is slow"))] if code else []
        return SimpleNamespace(losses=losses, throughput=SimpleNamespace(mfu=None))

    monkeypatch.setattr(speed_watch, "step_time", found)
    watch, said = SpeedWatch(tmp_path, 0.0, LaunchView()), {}
    for look in range(1, 9):
        watch.tick(look * (LOOK_SECONDS + 1))
        if shown := capsys.readouterr().err:
            said[look] = shown.strip().rpartition("slow: ")[2]
    assert said == {5: "b is slow", 8: "a is slow"}
