"""Two hosts train as one does: the losses are equal, whatever started the ranks. Each way trains one stage."""

import shlex
from pathlib import Path

import pytest

from tests.cluster.bed import Bed
from tests.cluster.slurm_bed import Slurm
from tests.cluster.ways import losses, on_one_host, words
from tests.running import ZLAUNCH, run, zlaunch

pytestmark = pytest.mark.hosts


def check(folder: Path, stage: int) -> None:
    found = [losses(folder / "r", rank) for rank in (0, 1)]
    assert found == [on_one_host(stage)] * 2
    assert len(found[0]) == 4


def test_srun_on_every_node(slurm: Slurm, tmp_path: Path) -> None:
    argv = ["srun", "-N2", "--ntasks-per-node=1", *ZLAUNCH, "train", "--gpus", "1", *words(3)]
    result = run(*argv, cwd=tmp_path, env=slurm.environment())
    assert result.status == 0, result.err
    check(tmp_path, 3)


def test_one_zlaunch_in_an_allocation(slurm: Slurm, tmp_path: Path) -> None:
    line = shlex.join([*ZLAUNCH, "train", "--gpus", "1", *words(2)])
    (tmp_path / "job.sh").write_text(f"#!/bin/sh\n{line}\n")
    result = run("sbatch", "-N2", "--wait", "job.sh", cwd=tmp_path, env=slurm.environment())
    assert result.status == 0, "".join(file.read_text() for file in tmp_path.glob("slurm-*.out"))
    check(tmp_path, 2)


def test_torchrun_over_ssh(bed: Bed, tmp_path: Path) -> None:
    flags = ["--hostfile", bed.hostfile, "--launcher", "torchrun"]
    result = zlaunch("train", *words(3), *flags, cwd=tmp_path, env=bed.environment())
    assert result.status == 0, result.err
    check(tmp_path, 3)


def test_deepspeed_with_open_mpi(bed: Bed, tmp_path: Path) -> None:
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    flags = ["--hostfile", bed.hostfile, "--launcher", "openmpi"]
    result = zlaunch("train", *words(3), *flags, cwd=tmp_path, env={**bed.environment(), **root})
    assert result.status == 0, result.err
    check(tmp_path, 3)


def test_deepspeed_over_pdsh(bed: Bed, tmp_path: Path) -> None:
    flags = ["--hostfile", bed.hostfile, "--launcher", "deepspeed"]
    result = zlaunch("train", *words(2), *flags, cwd=tmp_path, env=bed.environment())
    assert result.status == 0, result.err
    check(tmp_path, 2)
