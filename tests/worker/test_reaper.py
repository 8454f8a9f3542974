"""The reaper, each test with processes of its own: a zlaunch, a program under the reaper, and its daemon."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.running import ROOT

ZLAUNCH = """
import os, sys
from zlaunch.process import Child
child = Child([sys.executable, "-c", sys.argv[1]], os.environ, open("log", "wb"), 5.0, if_killed=["touch", "killed"])
print(child.wait(lambda: None), flush=True)
"""

PROGRAM = """
import json, os, signal, subprocess, sys, time
for number in (signal.SIGHUP, signal.SIGINT):
    signal.signal(number, lambda number, _: print(signal.Signals(number).name, flush=True))
daemon = subprocess.Popen(["setsid", "sleep", "1000"])
pids = {"program": os.getpid(), "reaper": os.getppid(), "daemon": daemon.pid}
open("pids.partial", "w").write(json.dumps(pids))
os.rename("pids.partial", "pids")
while not os.path.exists("go"):
    time.sleep(0.02)
"""


class Job:
    """A zlaunch whose program runs."""

    def __init__(self, folder: Path, end: str = "") -> None:
        self.folder = folder
        argv = [sys.executable, "-c", ZLAUNCH, PROGRAM + end]
        self.zlaunch = subprocess.Popen(
            argv, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
        )
        while not (folder / "pids").exists():
            assert self.zlaunch.poll() is None
            time.sleep(0.02)
        pids = json.loads((folder / "pids").read_text())
        self.processes = {name: psutil.Process(pid) for name, pid in pids.items()}

    def send(self, name: str, number: int) -> None:
        os.kill(self.zlaunch.pid if name == "zlaunch" else self.processes[name].pid, number)

    def is_told(self, number: signal.Signals) -> None:
        """Wait until the program has got a signal."""
        deadline = time.monotonic() + 30
        while number.name not in (self.folder / "log").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def ends(self) -> str:
        """Wait for the end of all its processes, and return what zlaunch said of the program."""
        said, _ = self.zlaunch.communicate(timeout=30)
        _, alive = psutil.wait_procs(self.processes.values(), timeout=10)
        assert alive == []
        return said.strip()


@pytest.fixture
def job(tmp_path: Path) -> Any:
    job = Job(tmp_path)
    yield job
    job.zlaunch.kill()
    for process in job.processes.values():
        if process.is_running():
            process.kill()


def test_a_program_under_the_reaper_ends_with_its_own_status(tmp_path: Path) -> None:
    job = Job(tmp_path, "sys.exit(7)")
    (tmp_path / "go").touch()
    assert job.ends() == "7"
    assert not (tmp_path / "killed").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_program_under_the_reaper_ends_by_its_own_signal(job: Job, number: signal.Signals) -> None:
    job.send("program", number)
    assert job.ends() == str(-number)


def test_a_signal_to_the_reaper_alone_reaches_the_program(job: Job, tmp_path: Path) -> None:
    job.send("reaper", signal.SIGHUP)
    job.is_told(signal.SIGHUP)
    (tmp_path / "go").touch()
    assert job.ends() == "0"
    assert (tmp_path / "log").read_text() == "SIGHUP\n"


def test_a_signal_that_zlaunch_was_started_to_ignore_does_not_reach_the_program(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        job = Job(tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    for number in (signal.SIGHUP, signal.SIGINT):
        job.send("reaper", number)
    job.is_told(signal.SIGINT)
    (tmp_path / "go").touch()
    assert job.ends() == "0"
    assert (tmp_path / "log").read_text() == "SIGINT\n"


def test_a_program_whose_zlaunch_is_killed_is_stopped_and_cleaned_up(job: Job, tmp_path: Path) -> None:
    job.send("zlaunch", signal.SIGKILL)
    job.ends()
    assert (tmp_path / "killed").exists()


def test_a_daemon_ends_when_zlaunch_and_the_program_are_killed_at_once(job: Job, tmp_path: Path) -> None:
    for name in ("zlaunch", "program"):
        job.send(name, signal.SIGKILL)
    job.ends()
    assert (tmp_path / "killed").exists()


def test_a_reaper_that_is_killed_takes_the_program_and_its_daemon_along(job: Job) -> None:
    job.send("reaper", signal.SIGKILL)
    assert job.ends() == "-9"


def test_the_reaper_is_not_found_by_the_name_of_zlaunch(job: Job) -> None:
    assert not any("zlaunch" in word for word in job.processes["reaper"].cmdline())
