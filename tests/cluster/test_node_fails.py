"""A real Slurm takes a node away in the middle of a training: the verdict names it, and nothing is left."""

import json
import shlex
from pathlib import Path

import pytest

from tests.cluster.slurm_bed import Slurm
from tests.cluster.test_hosts import wait_until, working_in
from tests.cluster.ways import losses, words
from tests.running import ZLAUNCH

pytestmark = pytest.mark.hosts


def submit(slurm: Slurm, folder: Path, *options: str, steps: int = 1_000_000) -> str:
    line = shlex.join([*ZLAUNCH, "train", "--gpus", "1", *words(2), "--", "--steps", str(steps)])
    script = folder / "job.sh"
    script.write_text(f"#!/bin/sh\ncd {shlex.quote(str(folder))}\nexec {line}\n")
    log = f"--output={folder}/job.log"
    return slurm.ask("sbatch", "--parsable", "-N2", log, *options, script)


def trains(folder: Path) -> bool:
    logs = [folder / "r" / "logs" / f"rank-{rank}.log" for rank in (0, 1)]
    return all(log.exists() for log in logs) and all(len(losses(folder / "r", rank)) > 3 for rank in (0, 1))


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_node_that_slurm_sets_down_is_the_verdict(number: int, slurm: Slurm, tmp_path: Path) -> None:
    job, node = submit(slurm, tmp_path, "--no-requeue"), slurm.nodes[number]
    wait_until(lambda: trains(tmp_path), 180)
    assert working_in(tmp_path)
    slurm.set_node(node, "down")
    wait_until(lambda: not working_in(tmp_path), 15)
    slurm.wait(job, "NODE_FAIL")
    ending = tmp_path / "r" / "how-it-ended.json"
    wait_until(lambda: ending.exists() and json.loads(ending.read_text())["verdict"] is not None, 15)
    verdict = json.loads(ending.read_text())["verdict"]
    assert (verdict["code"], verdict["host"]) == ("host-lost", node)


@pytest.mark.full
def test_a_node_that_slurm_drains_lets_the_training_end(slurm: Slurm, tmp_path: Path) -> None:
    job = submit(slurm, tmp_path, "--no-requeue", steps=300)
    wait_until(lambda: trains(tmp_path), 180)
    slurm.set_node(slurm.nodes[1], "drain")
    slurm.wait(job, "COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL")
    assert slurm.job(job)["JobState"] == "COMPLETED", (tmp_path / "job.log").read_text()
    assert len(losses(tmp_path / "r")) == 300
