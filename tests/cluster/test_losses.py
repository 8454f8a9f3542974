"""Hosts train as one does: the losses are equal, whatever started the ranks.

On a commit, each way trains one of the stages.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cluster.bed import NAMES, Bed
from tests.cluster.slurm_bed import Slurm
from tests.cluster.ways import MPI_AS_ROOT, losses, on_one_host, words
from tests.launchers import taken
from tests.running import ZLAUNCH, Result, run, zlaunch

pytestmark = pytest.mark.hosts

Way = Callable[[Bed, Path, list[str]], Result]
SlurmWay = Callable[[Slurm, Path, list[str]], Result]


def srun_on_every_node(slurm: Slurm, folder: Path, job: list[str]) -> Result:
    argv = ["srun", "-N2", "--ntasks-per-node=1", *ZLAUNCH, "train", "--gpus", "1", *job]
    return run(*argv, cwd=folder, env=slurm.environment())


def one_zlaunch_in_an_allocation(slurm: Slurm, folder: Path, job: list[str]) -> Result:
    line = shlex.join([*ZLAUNCH, "train", "--gpus", "1", *job])
    (folder / "job.sh").write_text(f"#!/bin/sh\n{line}\n")
    result = run("sbatch", "-N2", "--wait", "--output=out", "job.sh", cwd=folder, env=slurm.environment())
    return Result(result.status, result.out, (folder / "out").read_text())


def submitted_to_slurm(slurm: Slurm, folder: Path, job: list[str]) -> Result:
    flags = ["--submit", "slurm", "--nodes", "2", "--gpus", "1"]
    return zlaunch("train", *flags, *job, cwd=folder, env=slurm.environment())


def torchrun_over_ssh(bed: Bed, folder: Path, job: list[str]) -> Result:
    flags = ["--hostfile", bed.hostfile, "--launcher", "torchrun"]
    return zlaunch("train", *job, *flags, cwd=folder, env=bed.environment())


def deepspeed_over_pdsh(bed: Bed, folder: Path, job: list[str]) -> Result:
    flags = ["--hostfile", bed.hostfile, "--launcher", "deepspeed"]
    return zlaunch("train", *job, *flags, cwd=folder, env=bed.environment())


def deepspeed_with_open_mpi(bed: Bed, folder: Path, job: list[str]) -> Result:
    flags = ["--hostfile", bed.hostfile, "--launcher", "openmpi"]
    return zlaunch("train", *job, *flags, cwd=folder, env={**bed.environment(), **MPI_AS_ROOT})


def variables_on_each_node(bed: Bed, folder: Path, job: list[str]) -> Result:
    first = bed.network.address(NAMES[0])
    lines = [
        f"cd {shlex.quote(str(folder))} && NNODES=2 NODE_RANK={number} MASTER_ADDR={first} "
        + shlex.join(["zlaunch", "train", "--gpus", "1", *job])
        for number in (0, 1)
    ]
    return typed(bed, folder, lines)


def lines_by_hand(bed: Bed, folder: Path, job: list[str]) -> Result:
    """Paste what `--no-ssh` prints."""
    hosts = folder / "hosts"
    hosts.write_text("".join(f"{name}:1 addr={bed.network.address(name)}\n" for name in NAMES))
    shown = zlaunch("train", *job, "--hostfile", hosts, "--no-ssh", cwd=folder)
    assert shown.status == 0, shown.err
    heads, lines = shown.out.splitlines()[::2], shown.out.splitlines()[1::2]
    assert heads == [f"# on {name}" for name in NAMES]
    return typed(bed, folder, lines)


def typed(bed: Bed, folder: Path, lines: Sequence[str]) -> Result:
    """Log in to both hosts and type a line; return what came of the first, with the worst exit status."""
    programs = f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH GLOO_SOCKET_IFNAME=eth0"
    pipe = subprocess.PIPE
    nodes = [
        subprocess.Popen(
            ["ssh", name, f"export {programs}; {line}"],
            cwd=folder,
            env=bed.environment(),
            stderr=pipe,
            text=True,
        )
        for name, line in zip(NAMES, lines, strict=True)
    ]
    said = [node.communicate(timeout=240)[1] for node in nodes]
    return Result(max(node.returncode for node in nodes), "", said[0])


SLURM: list[SlurmWay] = [srun_on_every_node, one_zlaunch_in_an_allocation, submitted_to_slurm]
HOSTS: list[Way] = [
    torchrun_over_ssh,
    deepspeed_over_pdsh,
    deepspeed_with_open_mpi,
    variables_on_each_node,
    lines_by_hand,
]


ASKED_ELSEWHERE = (one_zlaunch_in_an_allocation, variables_on_each_node, lines_by_hand)
"""Ways of which another test says that they start the ranks and connect them; `make test` trains in the others."""


def each(ways: Sequence[Callable[..., Result]]) -> pytest.MarkDecorator:
    """One stage a way; both in `make deaths`."""
    cases = [
        pytest.param(
            way, stage, id=f"{way.__name__}-{stage}", marks=pytest.mark.full if way in ASKED_ELSEWHERE else ()
        )
        for number, way in enumerate(ways)
        for stage in taken((2, 3), number)
    ]
    return pytest.mark.parametrize(("way", "stage"), cases)


def check(result: Result, folder: Path, stage: int) -> None:
    assert result.status == 0, result.out + result.err
    found = [losses(folder / "r", rank) for rank in (0, 1)]
    assert found == [on_one_host(stage)] * 2
    assert len(found[0]) == 4


@each(HOSTS)
def test_hosts_that_ssh_reaches_train_as_one_does(way: Way, stage: int, bed: Bed, tmp_path: Path) -> None:
    check(way(bed, tmp_path, words(stage)), tmp_path, stage)


@each(SLURM)
def test_nodes_of_slurm_train_as_one_host_does(
    way: SlurmWay, stage: int, slurm: Slurm, tmp_path: Path
) -> None:
    check(way(slurm, tmp_path, words(stage)), tmp_path, stage)


@pytest.mark.full
@pytest.mark.parametrize("stage", taken((3, 2), 0))
def test_hosts_with_different_numbers_of_slots_train_as_one_does(
    stage: int, bed: Bed, tmp_path: Path
) -> None:
    """As three ranks of a torchrun here, which zlaunch would not start on so few cores."""
    flags = ["--hosts", f"{NAMES[0]}:1,{NAMES[1]}:2"]
    result = zlaunch("train", *words(stage), *flags, cwd=tmp_path, env=bed.environment())
    assert result.status == 0, result.err
    script = json.loads((tmp_path / "r" / "job.json").read_text())["script"]
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", *script]
    here = run(*argv, cwd=tmp_path, env={**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"})
    expected = dict(re.findall(r"step (\d+): loss ([\d.]+)", here.out))  # the ranks write into the same lines
    assert len(expected) == 4, here.err
    for rank in range(3):
        assert losses(tmp_path / "r", rank) == [*expected.values()]
