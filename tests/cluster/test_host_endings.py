"""How a job on several hosts ends: a host or a connection is lost, a rank fails, zlaunch gets a signal."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.cluster.bed import NAMES, Bed
from tests.cluster.test_hosts import wait_until, working_in
from tests.launchers import FIRST_OF_EACH, LAST_OF_EACH
from tests.running import start, zlaunch

pytestmark = pytest.mark.hosts

SLEEP = """import os, sys, time
print("ready", flush=True)
if os.environ["RANK"] in sys.argv[1:]:
    sys.exit(7)
time.sleep(1000)
"""


@dataclass(frozen=True)
class Running:
    """A job of two ranks that sleep."""

    folder: Path
    zlaunch: "subprocess.Popen[bytes]"

    @property
    def run(self) -> Path:
        return self.folder / "r"

    def ending(self) -> tuple[str, str, str]:
        """How it ended, its verdict's code, and the verdict in one line."""
        record = json.loads((self.run / "how-it-ended.json").read_text())
        verdict = record["verdict"]
        return record["how"], verdict["code"], " ".join([verdict["cause"], *verdict["facts"]])

    def blamed(self) -> tuple[int, str]:
        """The rank and the host of its verdict."""
        verdict = json.loads((self.run / "how-it-ended.json").read_text())["verdict"]
        return verdict["rank"], verdict["host"]


@contextmanager
def sleeping(bed: Bed, folder: Path, launcher: str = "torchrun") -> Iterator[Running]:
    (folder / "sleep.py").write_text(SLEEP)
    flags = ["--hostfile", bed.hostfile, "--launcher", launcher, "--run-dir", "r"]
    job = Running(folder, start("train", "sleep.py", *flags, cwd=folder, env=bed.environment()))
    logs = [job.run / "logs" / f"rank-{rank}.log" for rank in (0, 1)]
    try:
        wait_until(lambda: all(log.exists() and "ready" in log.read_text() for log in logs), 120)
        yield job
    finally:
        job.zlaunch.kill()
        job.zlaunch.wait()


@pytest.mark.parametrize("launcher", FIRST_OF_EACH)
def test_a_host_whose_link_is_down_is_named_and_nothing_is_left(
    launcher: str, bed: Bed, tmp_path: Path
) -> None:
    with sleeping(bed, tmp_path, launcher) as job, bed.unplugged(NAMES[1]):
        assert job.zlaunch.wait(60) == 1
        how, code, text = job.ending()
        assert (how, code) == ("failed", "host-lost")
        assert f"{NAMES[1]} was lost" in text
        wait_until(lambda: not working_in(tmp_path), 15)


@pytest.mark.parametrize("launcher", LAST_OF_EACH)
def test_a_host_whose_ssh_is_killed_is_named_with_what_went(launcher: str, bed: Bed, tmp_path: Path) -> None:
    with sleeping(bed, tmp_path, launcher) as job:
        ssh = [
            one
            for one in psutil.Process(job.zlaunch.pid).children(recursive=True)
            if one.name() == "ssh" and NAMES[1] in one.cmdline()
        ]
        ssh[0].kill()
        assert job.zlaunch.wait(60) == 1
        assert job.ending()[:2] == ("failed", "host-lost")
        assert f"{NAMES[1]} was lost: `ssh` killed by SIGKILL" in job.ending()[2]
        assert job.blamed() == (1, NAMES[1])
        wait_until(lambda: not working_in(tmp_path), 15)


LEFT_AFTER = [
    ("torchrun", signal.SIGTERM),
    ("torchrun", signal.SIGKILL),
    pytest.param("deepspeed", signal.SIGKILL, marks=pytest.mark.full),
    pytest.param("torchrun", signal.SIGINT, marks=pytest.mark.full),
    pytest.param("deepspeed", signal.SIGTERM, marks=pytest.mark.full),
    pytest.param("deepspeed", signal.SIGINT, marks=pytest.mark.full),
]


@pytest.mark.parametrize(("launcher", "number"), LEFT_AFTER)
def test_a_signal_to_zlaunch_leaves_no_rank_on_any_host(
    launcher: str, number: signal.Signals, bed: Bed, tmp_path: Path
) -> None:
    with sleeping(bed, tmp_path, launcher) as job:
        job.zlaunch.send_signal(number)
        status = job.zlaunch.wait(15)
        wait_until(lambda: not working_in(tmp_path), 15)
        assert status == (-9 if number == signal.SIGKILL else 128 + number)


@pytest.mark.parametrize("launcher", LAST_OF_EACH)
def test_a_rank_that_fails_ends_the_other_host_and_is_the_verdict(
    launcher: str, bed: Bed, tmp_path: Path
) -> None:
    (tmp_path / "sleep.py").write_text(SLEEP)
    flags = ["--hostfile", bed.hostfile, "--launcher", launcher, "--run-dir", "r"]
    result = zlaunch("train", "sleep.py", *flags, "--", "1", cwd=tmp_path, env=bed.environment())
    assert result.status == 7, result.err
    assert "exited with status 7 on rank 1" in " ".join(result.err.split())
