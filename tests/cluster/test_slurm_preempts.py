"""A real Slurm takes the node of a training away, and the training goes on later as if nothing had been.

The jobs are those that `zlaunch train --submit slurm` writes and submits.
"""

import json
import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.cluster.slurm_bed import URGENT, Slurm
from tests.cluster.test_hosts import wait_until
from tests.jobs.test_preempt import CONFIG, ENGINE
from tests.running import ZLAUNCH, zlaunch

pytestmark = pytest.mark.hosts

LOADER = """
import torch.utils.data
rows = iter(torch.utils.data.DataLoader(range(10**9), num_workers=1))
"""
"""A process of the script, whose end would be an error of the script."""
STEPS = ("--", "--steps", "60")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path)


def written(folder: Path) -> Path:
    source = ENGINE.replace("model, step, ", f"{LOADER}model, step, ")
    (folder / "engine.py").write_text(source.replace("    for micro in", "    next(rows)\n    for micro in"))
    (folder / "ds.json").write_text(json.dumps(CONFIG))
    return folder


def job(*more: str) -> tuple[str, ...]:
    return ("train", "engine.py", "--ds-config", "ds.json", "--gpus", "1", "--save", "out", *more)


def submitted(slurm: Slurm, folder: Path, *more: str) -> str:
    words = ("--submit", "slurm", "--detach", "--job-name", "engine", *more)
    result = zlaunch(*job(*words), cwd=folder, env=slurm.environment())
    found = re.search(r"submitted as (\d+)", result.err)
    assert found, result
    return found[1]


def text_of(folder: Path, number: str) -> str:
    return " ".join((folder / "runs" / f"slurm-{number}.log").read_text().split())


def losses(folder: Path) -> list[str]:
    logs = sorted((folder / "runs").glob("*/logs/rank-0.log"))
    return re.findall(r"^step .*", "".join(log.read_text() for log in logs), re.MULTILINE)


def wait_for_step(folder: Path, step: int) -> None:
    wait_until(lambda: any(f"step {step} " in line for line in losses(folder)), 120)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """The losses of a job that nothing interrupts, trained once for each number of steps and ranks."""

    @cache
    def train(*more: str) -> list[str]:
        folder = written(tmp_path_factory.mktemp("whole"))
        assert zlaunch(*job(*more), cwd=folder, env={"DS_ACCELERATOR": "cpu"}).status == 0
        return losses(folder)

    return train


def test_a_preempted_job_saves_and_goes_on_with_the_same_losses(
    slurm: Slurm, folder: Path, uninterrupted: Callable[..., list[str]]
) -> None:
    first = submitted(slurm, folder, *STEPS)
    wait_for_step(folder, 8)
    log = f"--output={folder}/%j.log"
    urgent = slurm.ask("sbatch", "--parsable", "--nodes=2", f"--partition={URGENT}", log, "--wrap", "sleep 1")
    slurm.wait(urgent, "COMPLETED")
    assert slurm.wait(first, "COMPLETED")["Restarts"] == "1"
    text = text_of(folder, first)
    assert "preempted after" in text
    assert re.search(r"SIGTERM asked to save and stop: step \d+ is saved in out/global_step\d+", text)
    assert re.search(r"resume out/global_step\d+, step \d+", text)
    assert losses(folder) == uninterrupted(*STEPS)


@pytest.mark.full
def test_one_zlaunch_in_an_allocation_that_is_preempted_goes_on_with_the_same_losses(
    slurm: Slurm, folder: Path, uninterrupted: Callable[..., list[str]]
) -> None:
    more = ("--", "--steps", "150")
    line = shlex.join([*ZLAUNCH, *job("--resume", "latest"), *more])
    (folder / "job.sh").write_text(f"#!/bin/sh\n{line}\n")
    log, append = f"--output={folder}/%j.log", "--open-mode=append"
    first = slurm.ask("sbatch", "--parsable", "-N2", f"--chdir={folder}", log, append, folder / "job.sh")
    wait_for_step(folder, 8)
    urgent = slurm.ask("sbatch", "--parsable", "--nodes=2", f"--partition={URGENT}", log, "--wrap", "sleep 1")
    slurm.wait(urgent, "COMPLETED")
    ended, text = (
        slurm.wait(first, "COMPLETED", "FAILED"),
        " ".join((folder / f"{first}.log").read_text().split()),
    )
    assert ended["Restarts"] == "1", text
    assert re.search(r"SIGTERM asked to save and stop: step \d+ is saved in out/global_step\d+", text), text
    assert losses(folder) == uninterrupted("--gpus", "2", *more)


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "launcher"), [("TERM", "deepspeed"), ("TERM", "torchrun"), ("USR1", "torchrun")]
)
def test_a_signal_to_all_processes_of_a_job_saves_it_and_its_script_requeues_it(
    number: str, launcher: str, slurm: Slurm, folder: Path, uninterrupted: Callable[..., list[str]]
) -> None:
    first = submitted(slurm, folder, "--launcher", launcher, *STEPS)
    wait_for_step(folder, 8)
    slurm.ask("scancel", f"--signal={number}", first)
    assert slurm.wait(first, "COMPLETED", "FAILED")["Restarts"] == "1", text_of(folder, first)
    assert f"SIG{number} asked to save and stop: step" in text_of(folder, first)
    assert losses(folder) == uninterrupted(*STEPS)


@pytest.mark.full
def test_the_time_limit_of_a_job_is_known_and_saves_in_time(slurm: Slurm, folder: Path) -> None:
    limit = ("--slurm", "time=2", "--no-requeue", "--save-within", "60")
    number = submitted(slurm, folder, *limit, "--", "--steps", "4000")
    assert slurm.wait(number, "FAILED", "TIMEOUT")["ExitCode"] == "75:0"
    text = text_of(folder, number)
    assert f"the limit of Slurm job {number}" in text.partition("importing")[0]
    assert re.search(rf"the limit of Slurm job {number} \([^)]+\) asked to save and stop: step", text)
