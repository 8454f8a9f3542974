"""Scripts under Nsight Systems: a program that behaves as `nsys profile` does stands in for it."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from tests.running import ROOT, Program, zlaunch
from zlaunch.rundir.record import ProfileRecord
from zlaunch.worker.nsys import words_before

NSYS = """#!/bin/sh
shift
while [ "${1#--}" != "$1" ]; do
    case "$1" in --output=*) report="${1#--output=}.nsys-rep" ;; esac
    shift
done
"$@" &
wait $!
status=$?
sleep 0.5
echo "$status" >"$report"
exit $status
"""
SCRIPT = """
import signal, time
print("there", signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, flush=True)
time.sleep(60)
"""


def test_only_the_ranks_that_are_asked_for_are_profiled() -> None:
    profile: ProfileRecord = {"ranks": [1], "with_nsys": True}
    report = Path("/runs/50%/rank-1.nsys-rep")
    assert words_before(profile, 0, report) == []
    assert "--output=/runs/50%%/rank-1" in words_before(profile, 1, report)


def test_steps_are_a_range_that_the_script_marks_and_outlives() -> None:
    words = words_before({"first": 3, "last": 4, "ranks": None, "with_nsys": True}, 7, Path("x.nsys-rep"))
    assert {"--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--kill=none"} < {*words}


def pid_in(record: Path) -> int | None:
    """Read the process that a rank has started; it may print before that is written down."""
    pid: int | None = json.loads(record.read_text()).get("pid") if record.exists() else None
    return pid


def test_a_script_that_is_stopped_leaves_a_report_even_if_all_processes_get_the_signal(
    tmp_path: Path,
) -> None:
    nsys, script, log = tmp_path / "nsys", tmp_path / "x.py", tmp_path / "logs" / "rank-0.log"
    record = tmp_path / "ranks" / "rank-0.json"
    nsys.write_text(NSYS)
    nsys.chmod(0o755)
    script.write_text(SCRIPT)
    for folder in ("ranks", "logs"):
        (tmp_path / folder).mkdir()
    profile = {"first": None, "last": None, "ranks": [0], "with_nsys": True}
    job = {"zlaunch_pid": os.getpid(), "over_ssh": False, "script": [str(script)], "environment": {}}
    (tmp_path / "job.json").write_text(json.dumps({**job, "profile": profile}))
    env = {**os.environ, "RANK": "0", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    program = [sys.executable, "-m", "zlaunch.worker.rank", str(tmp_path)]
    with Program(program, cwd=ROOT, env=env) as rank:
        while not log.exists() or "there" not in log.read_text() or (below := pid_in(record)) is None:
            assert rank.poll() is None
            time.sleep(0.05)
        os.killpg(below, 15)  # as DeepSpeed's launcher does
        rank.terminate()
    assert "there True" in log.read_text()
    assert (tmp_path / "ranks" / "rank-0.nsys-rep").read_text() == "143\n"


@pytest.mark.parametrize(
    ("asked", "why"), [("nsys", "needs `nsys`, which is not on PATH"), ("nsys:3", "this job has no GPU")]
)
def test_without_nsys_or_without_a_gpu_to_tell_it_the_steps_nothing_is_started(
    asked: str, why: str, tmp_path: Path
) -> None:
    (tmp_path / "x.py").write_text("import deepspeed\n")
    env = {"PATH": str(tmp_path), "DS_ACCELERATOR": "cpu"}
    result = zlaunch("train", "x.py", "--gpus", "1", "--profile", asked, cwd=tmp_path, env=env)
    assert (result.status, why in result.err) == (69, True)
    assert not (tmp_path / "runs").exists()
