"""What is recorded in place of a zlaunch that was killed."""

import json
from pathlib import Path

from zlaunch.rundir.layout import RunDir
from zlaunch.worker import lost

JOB = {"host": "w0", "zlaunch_pid": 7, "started": 1.0, "swap_dirs": []}


def test_the_verdict_names_what_may_know_why_zlaunch_was_killed(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    lost.main(RunDir(tmp_path), None)
    verdict = json.loads((tmp_path / "how-it-ended.json").read_text())["verdict"]
    assert verdict["advice"] == [f"{lost.SHOW_OOM_KILLS} shows whether the kernel killed it to free memory"]


def test_an_ending_that_zlaunch_has_recorded_stays(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    (tmp_path / "how-it-ended.json").write_text('{"how": "finished"}')
    lost.main(RunDir(tmp_path), None)
    assert json.loads((tmp_path / "how-it-ended.json").read_text()) == {"how": "finished"}


def test_the_locks_of_killed_builds_are_removed_after_a_run_directory_is_gone(tmp_path: Path) -> None:
    lock = tmp_path / "ops" / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    lost.main(RunDir(tmp_path / "gone"), tmp_path / "ops")
    assert (lock.exists(), (tmp_path / "gone").exists()) == (False, False)
