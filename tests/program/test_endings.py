"""Jobs that end badly: the exit status is the job's own, and no process of it is left."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.running import start, zlaunch

pytestmark = pytest.mark.job

SCRIPT = """
import argparse, os, signal, subprocess, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--how")
how = parser.parse_known_args()[0].how
orphan = subprocess.Popen(["setsid", "sleep", "1000"])
if os.environ["RANK"] == "1":
    if how == "exit":
        sys.exit(7)
    if how == "raise":
        raise RuntimeError("the cause")
    if how and how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
if how == "stubborn":
    signal.signal(signal.SIGTERM, lambda *_: print("asked to stop", flush=True))
print("ready", flush=True)
time.sleep(1000)
"""
ENDS_WITHIN_SECONDS = 10.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
@pytest.mark.parametrize(("how", "status"), [("exit", 7), ("raise", 1), ("SIGKILL", 137), ("SIGSEGV", 139)])
def test_the_status_is_that_of_the_rank_that_failed_first(
    launcher: str, how: str, status: int, folder: Path
) -> None:
    result = zlaunch(
        "train", "script.py", "--launcher", launcher, "--run-dir", "r", "--", "--how", how, cwd=folder
    )
    outcome = json.loads((folder / "r" / "how-it-ended.json").read_text())
    assert result.status == status
    assert outcome["first_failure"]["rank"] == 1
    assert "rank 1" in result.err
    assert left_of(folder) == []


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_every_rank(launcher: str, number: signal.Signals, folder: Path) -> None:
    with running(folder, launcher, "sleep") as job:
        job.send_signal(number)
        assert job.wait(ENDS_WITHIN_SECONDS) == 128 + number
    assert left_of(folder) == []


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_a_rank_that_does_not_stop_is_given_its_time_and_then_killed(launcher: str, folder: Path) -> None:
    with running(folder, launcher, "stubborn") as job:
        began = time.monotonic()
        job.send_signal(signal.SIGTERM)
        assert job.wait(ENDS_WITHIN_SECONDS) == 143
    assert time.monotonic() - began > 4
    assert "asked to stop" in (folder / "r" / "logs" / "rank-1.log").read_text()
    assert left_of(folder) == []


def test_the_same_signal_twice_stops_at_once(folder: Path) -> None:
    with running(folder, "torchrun", "stubborn") as job:
        began = time.monotonic()
        job.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        job.send_signal(signal.SIGTERM)
        assert job.wait(ENDS_WITHIN_SECONDS) == 143
    assert time.monotonic() - began < 4


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_a_killed_launcher_is_named_and_its_ranks_are_ended(launcher: str, folder: Path) -> None:
    with running(folder, launcher, "sleep") as job:
        process_running(job, f"bin/{launcher}", but_not="zlaunch.guard").kill()
        assert job.wait(ENDS_WITHIN_SECONDS) == 137
    assert left_of(folder) == []


def test_a_killed_node_launcher_of_deepspeed_is_no_success(folder: Path) -> None:
    with running(folder, "deepspeed", "sleep") as job:
        process_running(job, "deepspeed.launcher.launch").kill()
        assert job.wait(ENDS_WITHIN_SECONDS) == 137
    assert left_of(folder) == []


@pytest.mark.parametrize("launcher", ["torchrun", "deepspeed"])
def test_nothing_outlives_a_zlaunch_that_is_killed(launcher: str, folder: Path) -> None:
    with running(folder, launcher, "stubborn") as job:
        job.kill()
        job.wait(ENDS_WITHIN_SECONDS)
        deadline = time.monotonic() + ENDS_WITHIN_SECONDS
        while left_of(folder) and time.monotonic() < deadline:
            time.sleep(0.2)
    assert left_of(folder) == []


def test_a_run_leaves_a_record_of_its_known_shape(folder: Path) -> None:
    zlaunch("train", "script.py", "--run-dir", "r", "--", "--how", "exit", cwd=folder)
    assert {path.name for path in (folder / "r").iterdir()} == {
        "ds_config.json", "environment.json", "job.json", "logs", "how-it-ended.json", "provenance.json", "ranks", "run.sh",
    }  # fmt: skip


def test_secrets_in_the_environment_are_never_written(folder: Path) -> None:
    secret = {"HF_TOKEN": "hf_nobodymayknow", "NCCL_KEY": "nobodymayknow"}
    zlaunch("train", "script.py", "--run-dir", "r", "--", "--how", "exit", cwd=folder, env=secret)
    written = [file for file in (folder / "r").rglob("*") if file.is_file()]
    assert not [file for file in written if b"nobodymayknow" in file.read_bytes()]


def test_arguments_reach_the_script_with_their_spaces(folder: Path) -> None:
    (folder / "show.py").write_text("import sys\nprint(sys.argv[1:5])\n")
    words = ["--text", "two  words", "$HOME; rm {}", 'it\'s "quoted"']
    result = zlaunch("train", "show.py", "--", *words, cwd=folder)
    assert str(words) in result.out


@contextlib.contextmanager
def running(folder: Path, launcher: str, how: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a job and hand it over as soon as both ranks run."""
    job = start(
        "train", "script.py", "--launcher", launcher, "--run-dir", "r", "--", "--how", how, cwd=folder
    )
    logs = [folder / "r" / "logs" / f"rank-{rank}.log" for rank in (0, 1)]
    deadline = time.monotonic() + 300
    while not all(log.exists() and "ready" in log.read_text() for log in logs):
        assert time.monotonic() < deadline
        assert job.poll() is None
        time.sleep(0.1)
    try:
        yield job
    finally:
        job.kill()
        job.wait()


def process_running(job: "subprocess.Popen[bytes]", name: str, but_not: str = "\0") -> psutil.Process:
    """Find the process of a job whose command line holds a name."""
    lines = {child: " ".join(child.cmdline()) for child in psutil.Process(job.pid).children(recursive=True)}
    return next(child for child, line in lines.items() if name in line and but_not not in line)


def left_of(folder: Path) -> list[str]:
    """List the processes that still work in a folder."""
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and Path(process.cwd()) == folder and process.status() != "zombie":
                left.append(" ".join(process.cmdline()))
    return left
