"""A scheduler and a launcher that are one module each: nothing else in zlaunch knows them."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import ROOT

SCHEDULER = """
from zlaunch.frozen import dataclass
from typing import Annotated

import typer

from zlaunch.launch.scheduler import JobStatus, Scheduler, SubmitRequest


@dataclass(frozen=True)
class ToyRequest(SubmitRequest):
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Queue of the toy.")] = None


def check(request):
    return [f"the queue is {request.queue}"]


def render(request):
    return f"toy {request.queue} {request.nodes} {' '.join(request.words)}\\n"


def submit(text, request):
    print(f"got {text}", end="")
    return "toy-1"


def look(job, request):
    return JobStatus("done", is_over=True, exit_status=3)


def cancel_command(job, request):
    return f"toycancel {job}"


SCHEDULER = Scheduler("Toy", ToyRequest, check, render, submit, look, cancel_command, shares_files=True)
"""
LAUNCHER = """
from zlaunch.launch.launcher import Backend


def build_argv(target, topology, accelerator, port):
    return ("toy.launcher", f"--ranks={topology.world_size}", target.name, *target.args)


BACKEND = Backend(build_argv)
"""
PROGRAM = """
import sys
import zlaunch.launch.backends, zlaunch.launch.schedulers
zlaunch.launch.backends.__path__.append(sys.argv[1] + "/backends")
zlaunch.launch.schedulers.__path__.append(sys.argv[1] + "/schedulers")
del sys.argv[1]
from zlaunch.cli import main
main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, source in (("schedulers", SCHEDULER), ("backends", LAUNCHER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "toy.py").write_text(source)
    (tmp_path / "train.py").write_text("")
    return tmp_path


def ran(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-c", PROGRAM, str(folder), "train", *words]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_the_help_has_the_options_of_a_new_scheduler_in_a_panel_of_its_own(folder: Path) -> None:
    said = ran(folder, "--help").stdout
    assert "Toy (with --submit toy):\n  --queue NAME  Queue of the toy.\n" in said
    assert "--submit <kubernetes|ray|slurm|toy>" in said


def test_a_dry_run_shows_what_a_new_scheduler_writes(folder: Path) -> None:
    words = ("train.py", "--stage", "3", "--submit", "toy", "--queue", "long", "--nodes", "2", "--dry-run")
    done = ran(folder, *words)
    assert (done.returncode, done.stdout) == (0, "toy long 2 train.py --stage 3\n"), done.stderr
    assert "the queue is long" in done.stderr


def test_a_job_of_a_new_scheduler_is_submitted_and_followed(folder: Path) -> None:
    done = ran(folder, "train.py", "--submit", "toy", "--queue", "long")
    assert (done.returncode, done.stdout) == (3, "got toy long 1 train.py\n"), done.stderr
    assert "submitted as toy-1; `toycancel toy-1` cancels it" in done.stderr


def test_the_options_of_a_new_scheduler_are_its_own(folder: Path) -> None:
    done = ran(folder, "train.py", "--submit", "slurm", "--queue", "long", "--dry-run")
    assert (done.returncode, "`--queue` has no effect with `--submit slurm`" in done.stderr) == (2, True)
    alone = ran(folder, "train.py", "--queue", "long", "--dry-run")
    assert (alone.returncode, "write `--submit toy`" in alone.stderr) == (2, True), alone.stderr


def test_zlaunch_yaml_may_have_the_options_of_a_new_scheduler(folder: Path) -> None:
    (folder / "zlaunch.yaml").write_text("script: train.py\nsubmit: toy\nqueue: night\n")
    done = ran(folder, "--dry-run")
    assert (done.returncode, done.stdout) == (0, "toy night 1 --job none train.py\n"), done.stderr


def test_a_plan_shows_the_command_of_a_new_launcher(folder: Path) -> None:
    done = ran(folder, "train.py", "--launcher", "toy", "--gpus", "2", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "command for toy" in done.stdout
    assert "toy.launcher --ranks=2 train.py" in " ".join(done.stdout.split())


def test_the_help_has_the_name_of_a_new_launcher(folder: Path) -> None:
    assert "--launcher <deepspeed|openmpi|torchrun|toy>" in ran(folder, "--help").stdout
