"""What comes between the programs of a job."""

import signal
from pathlib import Path

import pytest

from tests.facts import facts_of
from tests.making import SHAPE, TWO_GPUS, interpreter, local, script
from zlaunch.cli.views.launch import LaunchView
from zlaunch.job.spec import JobSpec, MonitorOptions
from zlaunch.launch import execute
from zlaunch.launch.make_plan import make_plan
from zlaunch.process import defer_signals, signals_as_exceptions
from zlaunch.rundir.layout import RunDir


def test_a_signal_after_a_build_was_stopped_is_not_taken_for_the_one_that_stopped_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped_build(*_: object) -> signal.Signals:
        defer_signals()
        signal.raise_signal(signal.SIGTERM)
        return signal.SIGHUP

    monkeypatch.setattr(execute, "build_everywhere", stopped_build)
    facts = facts_of(
        job=JobSpec(Path("train.py")), script=script(), ds_config=None, model=SHAPE, machine=TWO_GPUS,
        topology=local(0, 1), layout=RunDir(tmp_path), environ={}, python=interpreter(str(tmp_path)),
    )  # fmt: skip
    with signals_as_exceptions():
        try:
            ended = execute.execute(make_plan(facts), MonitorOptions(), LaunchView())
        finally:
            signal.sigtimedwait([signal.SIGTERM], 0)
    assert ended.outcome.exit_status == 128 + signal.SIGHUP
