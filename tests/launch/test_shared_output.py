"""A job is told of a run that still runs and saves to its directory."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from tests.facts import facts_of
from tests.making import script
from zlaunch.job.args import ScriptArgs
from zlaunch.job.spec import JobSpec
from zlaunch.launch.make_plan import make_plan
from zlaunch.launch.shared_output import check_shared_output
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.owner import own_identity


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_run(root: Path, pid: int, saves_to: Path, ending: Mapping[str, object] | None = None) -> None:
    root.mkdir(parents=True)
    started = psutil.Process(pid).create_time()
    job = {**own_identity(), "zlaunch_pid": pid, "zlaunch_started": started, "saves_to": str(saves_to)}
    (root / "job.json").write_text(json.dumps(job))
    if ending is not None:
        (root / "how-it-ended.json").write_text(json.dumps(ending))


def runs_named(output: Path, root: Path) -> list[str]:
    """Which runs a job that saves to a directory is warned of."""
    job = JobSpec(Path("train.py"), ScriptArgs.of(("--output_dir", str(output))))
    plan = make_plan(facts_of(job, script(), layout=RunDir(root)))
    return [finding.message.split()[2] for finding in check_shared_output(plan)]


def test_a_run_that_saves_to_the_same_directory_is_named_from_wherever_it_was_started(work: Path) -> None:
    other, out = os.getppid(), work / "elsewhere" / "out"
    write_run(work / "runs" / "here", other, out)
    write_run(work / "elsewhere" / "runs" / "there", other, out)
    write_run(work / "mine" / "beside", other, out)
    write_run(work / "runs" / "different", other, work / "out")
    assert sorted(runs_named(Path("elsewhere/out"), work / "mine" / "new")) == ["beside", "here", "there"]


def test_a_run_that_has_ended_and_one_of_this_zlaunch_are_not_named(work: Path) -> None:
    write_run(work / "runs" / "ended", os.getppid(), work / "out", {"how": "finished"})
    write_run(work / "runs" / "attempt", os.getpid(), work / "out")
    write_run(work / "runs" / "itself", os.getppid(), work / "out")
    assert runs_named(work / "out", work / "runs" / "itself") == []
