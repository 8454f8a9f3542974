"""Whatever starts zlaunch on several nodes, all of them train one job."""

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.cluster.bed import NAMES, Bed
from tests.cluster.slurm_bed import Slurm
from tests.cluster.test_hosts import wait_until, working_in
from tests.launchers import FIRST_OF_EACH, LAST_OF_EACH
from tests.running import ZLAUNCH, run, start, the_run, zlaunch

pytestmark = pytest.mark.hosts

SHOW = """import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", int(total), "on", os.uname().nodename, sys.argv[1:], flush=True)
dist.destroy_process_group()
"""
WORDS = ["show.py", "--", 'two  words; $HOME {"a": 1}']


def said(cwd: Path) -> list[str]:
    logs = (the_run(cwd) / "logs").glob("rank-*.log")
    return sorted(line for log in logs for line in log.read_text().splitlines() if line.startswith("rank"))


def expected(first: str, second: str) -> list[str]:
    return [f"rank {rank} of 2 on {host} {WORDS[2:]}" for rank, host in enumerate((first, second))]


def test_a_zlaunch_on_every_node_of_a_slurm_step(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    argv = ["srun", "-N2", "--ntasks-per-node=1", "--label", *ZLAUNCH, "train", "--gpus", "1", *WORDS]
    result = run(*argv, cwd=tmp_path, env=slurm.environment())
    assert result.status == 0, result.err
    assert said(tmp_path) == expected(*slurm.nodes)


def test_a_zlaunch_for_every_rank_of_a_slurm_step(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    argv = ["srun", "-N1", "--ntasks=2", "--overcommit", *ZLAUNCH, "train", *WORDS]
    result = run(*argv, cwd=tmp_path, env=slurm.environment())
    assert result.status == 0, result.err
    assert said(tmp_path) == expected(slurm.nodes[0], slurm.nodes[0])


def test_one_zlaunch_in_a_slurm_allocation(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    line = shlex.join([*ZLAUNCH, "train", "--gpus", "1", *WORDS])
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n{line}\n")
    result = run("sbatch", "-N2", "--wait", "job.sh", cwd=tmp_path, env=slurm.environment())
    output = "".join(file.read_text() for file in tmp_path.glob("slurm-*.out"))
    assert result.status == 0, output
    assert said(tmp_path) == expected(*slurm.nodes)


def test_torchrun_on_every_host_over_ssh(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    flags = ["--hostfile", bed.hostfile, "--launcher", "torchrun"]
    result = zlaunch("train", *flags, *WORDS, cwd=tmp_path, env=bed.environment())
    assert result.status == 0, result.err
    assert re.sub("on [^ ]*", "on X", "\n".join(said(tmp_path))) == "\n".join(expected("X", "X"))
    assert NAMES[1] in result.err


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


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, *(pytest.param(one, marks=pytest.mark.full) for one in (signal.SIGINT, signal.SIGTERM))],
)
def test_no_rank_is_left_on_any_host_under_torchrun(number: signal.Signals, bed: Bed, tmp_path: Path) -> None:
    with sleeping(bed, tmp_path) as job:
        job.zlaunch.send_signal(number)
        status = job.zlaunch.wait(15)
        wait_until(lambda: not working_in(tmp_path), 15)
        assert status == (-9 if number == signal.SIGKILL else 128 + number)


def test_a_rank_that_fails_far_away_is_the_verdict(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "sleep.py").write_text(SLEEP)
    flags = ["--hostfile", bed.hostfile, "--launcher", "torchrun", "--run-dir", "r"]
    result = zlaunch("train", "sleep.py", *flags, "--", "1", cwd=tmp_path, env=bed.environment())
    assert result.status == 7, result.err
    assert "exited with status 7 on rank 1" in " ".join(result.err.split())


def test_hosts_may_have_different_numbers_of_slots(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    flags = ["--hosts", f"{NAMES[0]}:1,{NAMES[1]}:2"]
    result = zlaunch("train", *flags, "show.py", cwd=tmp_path, env=bed.environment())
    assert result.status == 0, result.err
    assert [line.split(" on ")[0] for line in said(tmp_path)] == [f"rank {rank} of 3" for rank in range(3)]
