"""Two hosts with real ssh: DeepSpeed's runner over pdsh, and a torchrun on each of them."""

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.cluster.bed import NAMES, Bed
from tests.launchers import FIRST_OF_EACH
from tests.making import ODD_NAME
from tests.running import ZLAUNCH, start, zlaunch

pytestmark = pytest.mark.hosts

SHORT = ["--max_steps", "8", "--logging_steps", "2", "--sequence_length", "16"]
SLEEP = "print('ready', flush=True)\nimport time\ntime.sleep(1000)\n"


EACH_LAUNCHER = pytest.mark.parametrize("launcher", FIRST_OF_EACH)


@EACH_LAUNCHER
def test_a_filter_leaves_one_host(launcher: str, bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("import os\nprint('world', os.environ['WORLD_SIZE'])\n")
    flags = ["--hostfile", bed.hostfile, "--include", NAMES[1], "--launcher", launcher]
    result = zlaunch("train", "show.py", *flags, cwd=tmp_path, env=bed.environment())
    assert result.status == 0, result.err
    assert "world 1" in result.out


def test_of_what_hosts_share_nothing_is_said(bed: Bed, tmp_path: Path) -> None:
    (odd := tmp_path / ODD_NAME).mkdir()
    (odd / "show.py").write_text("")
    flags = ["--hostfile", bed.hostfile, "--dry-run"]
    result = zlaunch("train", "show.py", *flags, cwd=odd, env=bed.environment())
    assert (result.status, "not-shared" in result.err) == (0, False), result.err


def test_a_host_that_does_not_answer_is_named(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(f"{NAMES[0]} slots=1\nzlnowhere slots=1\n")
    result = zlaunch("train", "--hostfile", "hosts", cwd=tmp_path, env=bed.environment())
    assert result.status == 69
    assert "zlnowhere" in result.err
    assert NAMES[0] not in result.err


def test_slots_a_host_cannot_have_are_refused_with_their_line(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(f"# mine\n{NAMES[0]} slots=4096\n")
    result = zlaunch("train", "--hostfile", "hosts", cwd=tmp_path, env=bed.environment())
    assert result.status == 65
    assert "hosts:2:1" in result.err


def test_another_job_on_the_same_hosts_goes_on(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "sleep.py").write_text(SLEEP)
    jobs = []
    for name in ("one", "two"):
        args = ["train", "sleep.py", "--hostfile", bed.hostfile, "--run-dir", tmp_path / name]
        jobs.append(start(*args, cwd=tmp_path, env=bed.environment()))
    logs = [tmp_path / name / "logs" / f"rank-{rank}.log" for name in ("one", "two") for rank in (0, 1)]
    wait_until(lambda: all(log.exists() and "ready" in log.read_text() for log in logs), 120)
    jobs[0].send_signal(signal.SIGTERM)
    assert jobs[0].wait(10) == 143
    time.sleep(1)
    assert jobs[1].poll() is None
    jobs[1].send_signal(signal.SIGTERM)
    assert jobs[1].wait(10) == 143


def working_in(folder: Path) -> list[str]:
    """List the processes whose command line names a folder; both hosts share this machine's process table."""
    lines = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            others = line.replace(str(folder), "")  # which is below the directory of pytest
            if others != line and "pytest" not in others and ZLAUNCH[2] not in line.split()[1:3]:
                lines.append(line)
    return lines


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
