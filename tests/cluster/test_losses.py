"""Whatever starts ranks on several hosts, they train as on one host: equal losses, in order, with the same words.

`make test` trains one of the stages in each way but two, `make test-all` in all, and `make deaths` both stages.
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


def srun_for_every_rank(slurm: Slurm, folder: Path, job: list[str]) -> Result:
    argv = ["srun", "-N1", "--ntasks=2", "--overcommit", *ZLAUNCH, "train", *job]
    return run(*argv, cwd=folder, env=slurm.environment())


def one_zlaunch_in_an_allocation(slurm: Slurm, folder: Path, job: list[str]) -> Result:
    line = shlex.join([*ZLAUNCH, "train", "--gpus", "1", *job])
    (folder / "job.sh").write_text(f"#!/bin/sh\n{line}\n")
    out = folder / "out"
    options = ("--parsable", "-N2", f"--chdir={folder}", f"--output={out}")
    ended = slurm.wait(slurm.ask("sbatch", *options, folder / "job.sh"), "COMPLETED", "FAILED", seconds=300)
    return Result(int(ended["ExitCode"].partition(":")[0]), "", out.read_text())


def submitted_to_slurm(slurm: Slurm, folder: Path, job: list[str]) -> Result:
    flags = ["--submit", "slurm", "--nodes", "2", "--gpus", "1"]
    return zlaunch("train", *flags, *job, cwd=folder, env=slurm.environment())


def torchrun_over_ssh(bed: Bed, folder: Path, job: list[str]) -> Result:
    flags = ["--hostfile", bed.hostfile, "--launcher", "torchrun"]
    return zlaunch("train", *flags, *job, cwd=folder, env=bed.environment())


def deepspeed_over_pdsh(bed: Bed, folder: Path, job: list[str]) -> Result:
    flags = ["--hostfile", bed.hostfile, "--launcher", "deepspeed"]
    return zlaunch("train", *flags, *job, cwd=folder, env=bed.environment())


def deepspeed_with_open_mpi(bed: Bed, folder: Path, job: list[str]) -> Result:
    flags = ["--hostfile", bed.hostfile, "--launcher", "openmpi"]
    return zlaunch("train", *flags, *job, cwd=folder, env={**bed.environment(), **MPI_AS_ROOT})


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
    shown = zlaunch("train", "--hostfile", hosts, "--no-ssh", *job, cwd=folder)
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


SLURM: list[SlurmWay] = [
    srun_on_every_node,
    srun_for_every_rank,
    one_zlaunch_in_an_allocation,
    submitted_to_slurm,
]
HOSTS: list[Way] = [
    torchrun_over_ssh,
    deepspeed_over_pdsh,
    deepspeed_with_open_mpi,
    variables_on_each_node,
    lines_by_hand,
]
LIKE_ANOTHER = (one_zlaunch_in_an_allocation, lines_by_hand)
"""They start ranks as `submitted_to_slurm` and `variables_on_each_node` do, and only read other input."""


WORDS = 'two  words; $HOME {"a": 1}'


def each(ways: Sequence[Callable[..., Result]]) -> pytest.MarkDecorator:
    """One stage in each way; both in `make deaths`."""
    cases = [(way, stage) for number, way in enumerate(ways) for stage in taken((2, 3), number)]
    return pytest.mark.parametrize(
        ("way", "stage"),
        [
            pytest.param(
                way,
                stage,
                id=f"{way.__name__}-{stage}",
                marks=[pytest.mark.full] if way in LIKE_ANOTHER else [],
            )
            for way, stage in cases
        ],
    )


def check(result: Result, folder: Path, stage: int) -> None:
    assert result.status == 0, result.out + result.err
    assert [losses(folder / "r", rank) for rank in (0, 1)] == [on_one_host(stage)] * 2
    assert len(on_one_host(stage)) == 4
    for rank in (0, 1):
        log = (folder / "r" / "logs" / f"rank-{rank}.log").read_text()
        assert f"rank {rank} of 2 on " in log
        assert f"said {WORDS}\n" in log


def hosts_of(folder: Path) -> list[str]:
    """The hosts of the ranks in their order, by the record."""
    return [slot["host"] for slot in json.loads((folder / "r" / "job.json").read_text())["ranks"]]


@each(HOSTS)
def test_hosts_that_ssh_reaches_train_as_one_does(way: Way, stage: int, bed: Bed, tmp_path: Path) -> None:
    check(way(bed, tmp_path, [*words(stage), "--", "--say", WORDS]), tmp_path, stage)
    if way in (torchrun_over_ssh, deepspeed_over_pdsh, deepspeed_with_open_mpi):
        assert hosts_of(tmp_path) == [*NAMES]
    if way is deepspeed_over_pdsh:
        log = (tmp_path / "r" / "logs" / "launcher.log").read_text()
        assert all(f"{name}: " in log for name in NAMES)


@each(SLURM)
def test_nodes_of_slurm_train_as_one_host_does(
    way: SlurmWay, stage: int, slurm: Slurm, tmp_path: Path
) -> None:
    check(way(slurm, tmp_path, [*words(stage), "--", "--say", WORDS]), tmp_path, stage)
    nodes = [slurm.nodes[0]] * 2 if way is srun_for_every_rank else [*slurm.nodes]
    logs = [(tmp_path / "r" / "logs" / f"rank-{rank}.log").read_text() for rank in (0, 1)]
    assert [f" on {node}\n" in log for node, log in zip(nodes, logs, strict=True)] == [True, True]
    assert (tmp_path / "r" / "how-it-ended.json").exists()


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


def test_hosts_may_have_different_numbers_of_slots(bed: Bed, tmp_path: Path) -> None:
    """Even without DeepSpeed, whose three ranks take longer."""
    (tmp_path / "show.py").write_text(
        "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"
    )
    flags = ["--hosts", f"{NAMES[0]}:1,{NAMES[1]}:2", "--run-dir", "r"]
    result = zlaunch("train", *flags, "show.py", cwd=tmp_path, env=bed.environment())
    assert result.status == 0, result.err
    logs = [(tmp_path / "r" / "logs" / f"rank-{rank}.log").read_text() for rank in range(3)]
    assert logs == [f"rank {rank} of 3\n" for rank in range(3)]
