"""`--python`: what is wrong with it is said before anything is written, compiled or started."""

import base64
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import environments
from tests.running import Result, run, zlaunch

NO_OTHER = {"VIRTUAL_ENV": "", "CONDA_PREFIX": "", "PATH": "/nowhere"}
"""A shell that has no other Python to propose."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environments.with_path_file(tmp_path_factory.mktemp("seen"))


TRAINER = "from transformers import HfArgumentParser, TrainingArguments\n"
WITHOUT_DEEPSPEED = "import torch\n"


def refused(python: Path, cwd: Path, script: str = TRAINER, **env: str) -> Result:
    (cwd / "train.py").write_text(script)
    before = sorted(cwd.iterdir())
    result = zlaunch("train", "--python", python, "train.py", cwd=cwd, env={**NO_OTHER, **env})
    assert (result.status, result.out) == (69, "")
    assert "Traceback" not in result.err
    assert sorted(cwd.iterdir()) == before
    return result


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "error: there is no Python `{}`\n"),
        ("echo Python 3.8.18", "error: `{}` is Python 3.8.18, but zlaunch needs 3.10 or newer\n"),
        ("echo GNU bash", "error: `{}` is not a Python interpreter\n"),
    ],
)
def test_what_is_no_python_for_zlaunch_is_one_message(text: str | None, said: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    if text is not None:
        python.write_text(f"#!/bin/sh\n{text}\n")
        python.chmod(0o755)
    result = refused(python, tmp_path)
    assert result.err.startswith(said.format(python))
    assert result.err.count("\n") == 2


def test_packages_that_are_missing_are_one_message(bare: Path, tmp_path: Path) -> None:
    python = bare / "bin" / "python"
    assert refused(bare, tmp_path).err == (
        f"error: `{python}` lacks torch\n"
        f"hint: `{python} -m pip install torch`, or name another Python: `--python PATH`\n"
    )


def test_a_script_without_deepspeed_needs_only_torch(bare: Path, tmp_path: Path) -> None:
    said = refused(bare, tmp_path, WITHOUT_DEEPSPEED).err
    assert said.startswith(f"error: `{bare / 'bin' / 'python'}` lacks torch\n")


def test_an_active_environment_that_has_the_packages_is_named(bare: Path, seen: Path, tmp_path: Path) -> None:
    result = refused(bare, tmp_path, VIRTUAL_ENV=str(seen))
    assert result.err.endswith(f"hint: `--python {seen}` has it\n")


def test_a_torch_without_its_launcher_is_one_message(tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    for name in ("torch", "deepspeed"):
        (environments.site_of(folder) / name).mkdir()
        (environments.site_of(folder) / name / "__init__.py").touch()
    assert "has no `torch.distributed.run`" in refused(folder, tmp_path).err


def test_the_plan_names_the_python_of_the_ranks_its_packages_and_its_launcher(
    seen: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print('trained')\n")
    result = zlaunch("train", "--dry-run", "train.py", cwd=tmp_path, env={"ZLAUNCH_PYTHON": str(seen)})
    assert result.status == 0, result.err
    python = seen / "bin" / "python"
    said = " ".join(result.out.split())
    assert f"python {python} with torch 2." in said
    assert f" {python} " in said.partition("command for torchrun")[2].partition("-m torch.distributed.run")[0]
    assert f"PATH={seen / 'bin'}:" in said


def test_a_model_on_the_hub_that_zlaunch_cannot_look_up_keeps_no_job_from_starting(
    seen: Path, tmp_path: Path
) -> None:
    """Without huggingface_hub, in an environment of light packages."""
    tool = environments.tool(tmp_path / "tool")
    (tmp_path / "train.py").write_text(f"{TRAINER}AutoModelForCausalLM.from_pretrained('')\n")
    words = ["--no-ask", "--dry-run", "train.py", "--model_name_or_path", "some/model"]
    result = run(tool, "-m", "zlaunch", "train", "--python", seen, *words, cwd=tmp_path)
    assert result.status == 0, result.err
    assert "huggingface_hub is not installed in" in result.err
    result = run(tool, "-m", "zlaunch", "estimate", "some/model", "--python", seen, cwd=tmp_path)
    assert (result.status, "-m pip install huggingface_hub`" in result.err) == (69, True)


def test_a_module_is_one_of_that_python(seen: Path, tmp_path: Path) -> None:
    module = environments.site_of(seen) / "only_here.py"
    module.write_text("print('trained')\n")
    result = zlaunch("train", "--python", seen, "--dry-run", "-m", "only_here", cwd=tmp_path)
    assert result.status == 0, result.err
    assert "-m only_here" in result.out
    result = zlaunch("train", "--dry-run", "-m", "only_here", cwd=tmp_path)
    assert (result.status, "there is no module `only_here`" in result.err) == (66, True)


def test_hosts_count_their_gpus_with_the_python_of_the_ranks(seen: Path, tmp_path: Path) -> None:
    (ssh := tmp_path / "ssh").write_text(f"#!/bin/sh\necho \"$@\" >> '{tmp_path}/asked'\nexit 255\n")
    ssh.chmod(0o755)
    (tmp_path / "train.py").write_text("print('trained')\n")
    path = f"{tmp_path}:{os.environ['PATH']}"
    words = ["--dry-run", "--python", seen, "--hosts", "w0,w1", "train.py"]
    result = zlaunch("train", *words, cwd=tmp_path, env={"PATH": path})
    assert (result.status, "w0, w1: ssh printed nothing" in result.err) == (69, True), result.err
    commands = re.findall(r"echo (\S+) \| base64", (tmp_path / "asked").read_text())
    assert [f'"python": "{seen}' in base64.b64decode(command).decode() for command in commands] == [
        True,
        True,
    ]
