"""A run that is to stop is told in every way that works."""

import json
from pathlib import Path

import psutil
import pytest

from tests.running import Program
from zlaunch.errors import Unavailable
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.owner import own_identity
from zlaunch.runs.run import Run
from zlaunch.runs.stop import stop_run


def run(folder: Path, pid: int, started: float) -> Run:
    """A run of a process; what tells its ranks to stop cannot be written."""
    owner = {**own_identity(), "zlaunch_pid": pid, "zlaunch_started": started}
    (folder / "job.json").write_text(json.dumps(owner))
    stop = RunDir(folder).stop
    stop.with_name(f".{stop.name}.partial").mkdir()  # where it would be written first
    return Run(folder)


def test_a_run_is_stopped_even_where_nothing_can_be_written(tmp_path: Path) -> None:
    with Program[bytes](["sleep", "1000"]) as process:
        started = psutil.Process(process.pid).create_time()
        assert stop_run(run(tmp_path, process.pid, started)) == f"zlaunch (process {process.pid})"
        assert process.wait(30) == -15


def test_a_run_that_cannot_be_told_in_any_way_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be written"):
        stop_run(run(tmp_path, 0, 0.0))
