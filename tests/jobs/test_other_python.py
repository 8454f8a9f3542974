"""Ranks in another Python than zlaunch, which lives in an environment of its own with light packages alone."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import environments
from tests.running import RECIPE, ROOT, Result, run, the_run

pytestmark = pytest.mark.job

SCRIPT = """
import importlib.machinery, json, os, shutil, sys
import torch
print(json.dumps({
    "executable": sys.executable,
    "torch": torch.__file__,
    "path": sys.path,
    "zlaunch": getattr(importlib.machinery.PathFinder.find_spec("zlaunch"), "origin", None) is not None,
    "ninja": shutil.which("ninja") is not None,
    "config": os.path.basename(os.environ["ZLAUNCH_DS_CONFIG"]),
}))
from zlaunch.worker.report import report
report(step=1, steps=1)
"""


@dataclass(frozen=True)
class Shell:
    """The zlaunch of a tool environment, in a shell where no environment is active."""

    zlaunch: Path
    env: dict[str, str]
    cwd: Path

    def __call__(self, *args: object, **env: str) -> Result:
        return run(self.zlaunch, "-m", "zlaunch", *args, cwd=self.cwd, env={**self.env, **env})


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environments.tool(tmp_path_factory.mktemp("tool"))


@pytest.fixture
def shell(tool: Path, tmp_path: Path) -> Shell:
    (tmp_path / "train.py").write_text(SCRIPT)
    path = os.pathsep.join(["/usr/local/bin", "/usr/bin", "/bin"])
    return Shell(tool, {"PATH": path, "VIRTUAL_ENV": "", "PYTHONPATH": "", "ZLAUNCH_PYTHON": ""}, tmp_path)


def said_by_rank(folder: Path) -> dict[str, Any]:
    line = (folder / "logs" / "rank-0.log").read_text().splitlines()[-1]
    found: dict[str, Any] = json.loads(line)
    return found


def check(folder: Path, python: Path, shell: Shell) -> None:
    """Check who ran, with which packages, and what was recorded."""
    said = said_by_rank(folder)
    assert said["executable"] == str(python)
    assert Path(said["torch"]).parents[1] == environments.packages()
    assert not said["zlaunch"]
    assert said["ninja"]
    tool = str(shell.zlaunch.parents[1])
    assert not [entry for entry in said["path"] if entry == str(ROOT) or entry.startswith(tool)]
    job, about = (json.loads((folder / f"{name}.json").read_text()) for name in ("job", "environment"))
    assert job["python"] == about["python"] == str(python)
    assert about["packages"]["torch"] is not None
    assert json.loads((folder / "ranks" / "rank-0.pulse.json").read_text())["step"] == 1


@pytest.mark.full
def test_torchrun_starts_ranks_in_an_environment_that_sees_torch_in_another_one(
    shell: Shell, tmp_path: Path
) -> None:
    """Again by `run.sh`, and by `runs rerun`, which is told nothing about a Python."""
    python = environments.with_path_file(tmp_path / "seen") / "bin" / "python"
    result = shell("train", "--python", tmp_path / "seen", "--gpus", 1, "train.py")
    assert result.status == 0, result.err
    first = the_run(tmp_path)
    check(first, python, shell)
    again = run("sh", first / "run.sh", cwd=tmp_path, env=shell.env)
    assert f'"executable": "{python}"' in again.out, again.err
    result = shell("runs", "rerun", first, "--run-dir", "again")
    assert result.status == 0, result.err
    check(tmp_path / "again", python, shell)


def test_deepspeeds_runner_starts_ranks_in_an_environment_over_packages_of_the_system(
    shell: Shell, tmp_path: Path
) -> None:
    """The environment is named by the variable."""
    seen, env = environments.with_system_packages(tmp_path / "seen", tmp_path / "base")
    launcher = ["--launcher", "deepspeed", "--gpus", 1]
    result = shell("train", *launcher, "train.py", ZLAUNCH_PYTHON=str(seen), **env)
    assert result.status == 0, result.err
    check(the_run(tmp_path), seen / "bin" / "python", shell)


def test_what_is_rehearsed_and_asked_are_the_packages_of_that_python(shell: Shell, tmp_path: Path) -> None:
    seen = environments.with_path_file(tmp_path / "seen")
    model, on = RECIPE.parent / "small_llama", ["--on", "H100-80GB", "--stage", 3]
    result = shell("estimate", model, *on, "--json", "--no-levers", "--python", seen, ZLAUNCH_CACHE="off")
    assert result.status == 0, result.err
    assert json.loads(result.out)["forecast"]["method"] == "rehearsal", result.out
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 2}}')
    result = shell("config", "validate", "ds.json", "--deep", "--python", seen)
    assert (result.status, result.err) == (0, "ds.json: valid\n")
    result = shell("config", "validate", "ds.json", "--deep")
    assert (result.status, "lacks torch and deepspeed" in result.err) == (69, True)
