"""Whatever starts zlaunch on several nodes, all of them train one job."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.cluster.bed import NAMES, Bed
from tests.cluster.slurm_bed import Slurm
from tests.running import ZLAUNCH, Result, run, start, the_run, zlaunch

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
