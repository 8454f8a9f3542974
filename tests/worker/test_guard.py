import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.running import ROOT, Program

RANKS = [{"rank": rank, "local_rank": rank, "host": "a", "local": True} for rank in (0, 1)]


@pytest.mark.parametrize(
    ("records", "over_ssh", "returncode"),
    [
        ([], False, -signal.SIGKILL),
        ([{"returncode": 0}], False, -signal.SIGKILL),
        ([{"returncode": 0}], True, 0),
        ([{"returncode": 0}, {}], False, -signal.SIGKILL),
        ([{"returncode": 0}, {"returncode": -15, "stopped_by": 15}], False, -signal.SIGKILL),
        ([{"returncode": 0}, {"returncode": 0}], False, 0),
    ],
)
def test_a_launcher_that_says_0_of_ranks_that_did_not_end_was_killed_below(
    records: list[dict[str, Any]], over_ssh: bool, returncode: int, tmp_path: Path
) -> None:
    (tmp_path / "ranks").mkdir()
    job = {"zlaunch_pid": os.getpid(), "over_ssh": over_ssh, "ranks": RANKS}
    (tmp_path / "job.json").write_text(json.dumps(job))
    for rank, record in enumerate(records):
        (tmp_path / "ranks" / f"rank-{rank}.json").write_text(json.dumps({"rank": rank, **record}))
    guard = [sys.executable, "-m", "zlaunch.worker.guard", str(tmp_path), "true"]
    assert subprocess.run(guard, cwd=ROOT, check=False).returncode == returncode


def test_a_launcher_whose_ranks_outlive_it_was_killed_below_even_if_there_are_no_records(
    tmp_path: Path,
) -> None:
    job = {"zlaunch_pid": os.getpid(), "over_ssh": False, "ranks": RANKS}
    (tmp_path / "job.json").write_text(json.dumps(job))
    rank = [sys.executable, "-c", "import time; time.sleep(0.7)", "zlaunch.worker.rank"]
    guard = [sys.executable, "-m", "zlaunch.worker.guard", str(tmp_path), "sh", "-c", '"$@" &', "-", *rank]
    assert subprocess.run(guard, cwd=ROOT, check=False).returncode == -signal.SIGKILL


def test_records_that_cannot_be_written_do_not_show_that_a_launcher_was_killed(tmp_path: Path) -> None:
    job = {"zlaunch_pid": os.getpid(), "over_ssh": False, "ranks": RANKS}
    (tmp_path / "job.json").write_text(json.dumps(job))
    guard = [sys.executable, "-m", "zlaunch.worker.guard", str(tmp_path), "true"]
    assert subprocess.run(guard, cwd=ROOT, check=False).returncode == 0


IMPATIENT = """
from zlaunch.worker import guard
guard.LAUNCHER_SECONDS = 0.2
guard.end_like(guard.main(guard.RunDir(guard.Path(guard.sys.argv[1])), guard.sys.argv[2:]))
"""


def test_a_launcher_that_ignored_a_signal_and_was_killed_for_that_ended_by_the_signal(tmp_path: Path) -> None:
    job = {"zlaunch_pid": os.getpid(), "over_ssh": False, "ranks": RANKS}
    (tmp_path / "job.json").write_text(json.dumps(job))
    launcher = ["sh", "-c", 'trap "" INT; echo ready; exec sleep 100']
    argv = [sys.executable, "-c", IMPATIENT, str(tmp_path), *launcher]
    with Program(argv, cwd=ROOT, stdout=subprocess.PIPE) as guard:
        assert guard.stdout is not None
        guard.stdout.readline()
        guard.send_signal(signal.SIGINT)
        assert guard.wait(20) == -signal.SIGINT
