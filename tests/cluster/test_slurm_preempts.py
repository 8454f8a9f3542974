"""A real Slurm takes the node of a training away, and the training goes on later as if nothing had been."""

import json
import re
import shlex
import time
from pathlib import Path

import pytest

from tests.cluster.slurm_bed import URGENT, Slurm
from tests.jobs.test_preempt import CONFIG, ENGINE
from tests.running import ZLAUNCH, zlaunch

pytestmark = pytest.mark.hosts

STEPS = ("--", "--steps", "60")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "engine.py").write_text(ENGINE)
    (tmp_path / "ds.json").write_text(json.dumps(CONFIG))
    return tmp_path


def job(*more: str) -> tuple[str, ...]:
    return ("train", "engine.py", "--ds-config", "ds.json", "--gpus", "1", "--save", "out", *more)


def batch(folder: Path, body: str) -> str:
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\ncd {shlex.quote(str(folder))}\n{body}\n")
    return str(script)


def losses(folder: Path) -> list[str]:
    logs = sorted((folder / "runs").glob("*/logs/rank-0.log"))
    return re.findall(r"^step .*", "".join(log.read_text() for log in logs), re.MULTILINE)


def wait_for_step(folder: Path, step: int) -> None:
    deadline = time.monotonic() + 120
    while not any(f"step {step} " in line for line in losses(folder)):
        assert time.monotonic() < deadline, [file.read_text() for file in folder.glob("*.log")]
        time.sleep(0.2)


def uninterrupted(folder: Path) -> list[str]:
    (other := folder / "whole").mkdir()
    for name in ("engine.py", "ds.json"):
        (other / name).write_text((folder / name).read_text())
    assert zlaunch(*job(*STEPS), cwd=other, env={"DS_ACCELERATOR": "cpu"}).status == 0
    return losses(other)


def test_a_preempted_job_is_requeued_and_goes_on_with_the_same_losses(slurm: Slurm, folder: Path) -> None:
    resumed = shlex.join([*ZLAUNCH, *job("--resume", "latest", *STEPS)])
    script = batch(folder, f"exec {resumed}")
    log = f"--output={folder}/%j.log"
    first = slurm.ask("sbatch", "--parsable", "--requeue", "--open-mode=append", log, script)
    wait_for_step(folder, 8)
    urgent = slurm.ask("sbatch", "--parsable", "--nodes=2", f"--partition={URGENT}", log, "--wrap", "sleep 1")
    slurm.wait(urgent, "COMPLETED")
    assert slurm.wait(first, "COMPLETED")["Restarts"] == "1"
    text = " ".join((folder / f"{first}.log").read_text().split())
    assert "preempted after" in text
    assert re.search(r"SIGTERM asked to save and stop: step \d+ is saved in out/global_step\d+", text)
    assert re.search(r"resume out/global_step\d+, step \d+", text)
    assert losses(folder) == uninterrupted(folder)


def test_a_warning_to_all_processes_of_a_step_saves_and_the_script_requeues_itself(
    slurm: Slurm, folder: Path
) -> None:
    words = shlex.join([*ZLAUNCH, *job("--resume", "latest", *STEPS)])
    body = f'srun {words}\nstatus=$?\n[ $status -eq 75 ] && scontrol requeue "$SLURM_JOB_ID"\nexit $status'
    log = f"--output={folder}/%j.log"
    first = slurm.ask("sbatch", "--parsable", "--requeue", "--open-mode=append", log, batch(folder, body))
    wait_for_step(folder, 8)
    slurm.ask("scancel", "--signal=USR1", first)
    assert slurm.wait(first, "COMPLETED")["Restarts"] == "1"
    text = " ".join((folder / f"{first}.log").read_text().split())
    assert "SIGUSR1 asked to save and stop: step" in text
    assert losses(folder) == uninterrupted(folder)


def test_the_time_limit_of_a_job_is_known_and_saves_in_time(slurm: Slurm, folder: Path) -> None:
    words = shlex.join([*ZLAUNCH, *job("--save-within", "60", "--", "--steps", "4000")])
    log = f"--output={folder}/%j.log"
    number = slurm.ask("sbatch", "--parsable", "--time=2", log, batch(folder, f"exec {words}"))
    assert slurm.wait(number, "FAILED", "TIMEOUT")["ExitCode"] == "75:0"
    text = " ".join((folder / f"{number}.log").read_text().split())
    assert f"the limit of Slurm job {number}" in text.partition("importing")[0]
    assert re.search(rf"the limit of Slurm job {number} \([^)]+\) asked to save and stop: step", text)
