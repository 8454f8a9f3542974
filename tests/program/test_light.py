"""zlaunch where neither torch nor any package on top of it is installed: a login node, a laptop, a hook."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.each import each
from tests.environments import LIGHT, python_with
from tests.running import CONFIGS, ROOT, Result, run, zlaunch
from zlaunch.cli import program

pytestmark = pytest.mark.job

FAULTY = '{"zero_optimisation": {"stage": "2"}, "train_micro_batch_size_per_gpu": 1,}\n'
"""In fp32: known defects, which concern other precisions, depend on the release that is installed."""
ACCELERATE = "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  zero_stage: 3\n"
DDP = """
import torch
from torch.nn.parallel import DistributedDataParallel
torch.distributed.init_process_group("gloo")
DistributedDataParallel(torch.nn.Linear(1, 1))(torch.ones(1)).backward()
"""
CONSOLE_PROGRAM = "from zlaunch.__main__ import main\nmain()\n"
COMMANDS = """
--version
config validate zero3.json --world-size 8 --model model -- --learning_rate 2e-5 --optim adafactor
config validate zero3.json --for deepspeed --strict
config validate zero3.json --deepspeed 0.16
config validate faulty.json --format json
config validate faulty.json --format github
config validate faulty.json --fix
config validate accelerate.yaml nosuch.json
config resolve zero3.json --model model --world-size 8 -- --max_steps 100 --lr_scheduler_type cosine
config resolve accelerate.yaml
config write --stage 3 --offload cpu -o written.json
config schema
config diff zero2.json zero3.json
config explain
config explain reduce_bucket_size
config translate accelerate.yaml -- train.py
config translate -- deepspeed --num_gpus 2 train.py --deepspeed zero3.json
config translate -- torchrun --num_gpus 2 train.py
runs list
runs show finished --json
runs show stalled
runs logs failed
runs report failed
runs logs finished --launcher
runs why failed
runs why stalled
runs stop finished
config nosuch
recipes show causal_lm
train nosuch.py
""".strip().splitlines()


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that has the light packages and zlaunch, and no others."""
    return str(python_with(LIGHT, tmp_path_factory.mktemp("light")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in CONFIGS.glob("zero[23].json"):
        shutil.copy(file, tmp_path)
    shutil.copytree(ROOT / "recipes" / "small_llama", tmp_path / "model")
    shutil.copytree(ROOT / "tests" / "rundir" / "old_runs", tmp_path / "runs")
    (tmp_path / "faulty.json").write_text(FAULTY)
    (tmp_path / "accelerate.yaml").write_text(ACCELERATE)
    (tmp_path / "train.py").write_text("import deepspeed\n")
    return tmp_path


def test_configs_and_runs_need_no_more_than_the_light_packages(folder: Path, python: str) -> None:
    """Whatever a command says where everything is installed, it says there too."""
    said = []
    for interpreter in (sys.executable, python):
        shutil.copytree(folder, folder / "copy", ignore=lambda *_: ["copy"])
        results = [zlaunch(*line.split(), cwd=folder / "copy", python=interpreter) for line in COMMANDS]
        said.append(dict(zip(COMMANDS, results, strict=True)))
        shutil.rmtree(folder / "copy")
    assert said[0] == said[1]


def test_every_command_shows_its_help(tmp_path: Path, python: str) -> None:
    commands: list[tuple[list[str], Any]] = [([], program)]
    for words, group in commands:
        commands += [([*words, name], one) for name, one in getattr(group, "commands", {}).items()]
    results = {
        " ".join(words): zlaunch(*words, "--help", cwd=tmp_path, python=python) for words, _ in commands
    }
    assert {name for name, result in results.items() if result.status or not result.out} == set()


@each(
    ("words", "completed"),
    [
        ("ru", "runs"),
        ("runs wh", "why"),
        ("config validate --w", "--world-size"),
        ("train --stag", "--stage"),
    ],
)
def test_a_shell_completes_commands_and_options(
    words: str, completed: str, tmp_path: Path, python: str
) -> None:
    program = tmp_path / "zlaunch"
    program.write_text(CONSOLE_PROGRAM)
    env = {"_ZLAUNCH_COMPLETE": "complete_bash", "COMP_WORDS": f"zlaunch {words}"}
    result = run(python, program, cwd=tmp_path, env={**env, "COMP_CWORD": str(len(words.split()))})
    assert result == Result(0, f"{completed}\n", "")


@each(
    ("words", "lacks"),
    [
        ("train", "lacks torch, deepspeed, datasets, transformers and accelerate"),
        ("train train.py --dry-run", "lacks torch"),
        ("train -m train", "lacks torch"),
        ("estimate model", "lacks torch, deepspeed and transformers"),
        ("estimate org/model --on 8xH100-80GB", "lacks torch, deepspeed and transformers"),
        ("plan model --on 8xH100-80GB", "lacks torch, deepspeed and transformers"),
        ("config validate zero3.json --deep", "lacks torch and deepspeed"),
        (
            "config validate zero3.json --rehearse --model model --world-size 2",
            "lacks torch, deepspeed and transformers",
        ),
    ],
)
def test_what_needs_more_names_all_that_is_missing(words: str, lacks: str, folder: Path, python: str) -> None:
    result = zlaunch(*words.split(), cwd=folder, python=python)
    first, *more = result.err.splitlines()
    said = f"error: `{python}` {lacks}"
    assert (result.status, result.out, first, len(more)) == (69, "", said, 1), result
    assert "--python" in more[0]


@each(
    ("distribution", "module", "words"),
    [("typer", "typer", "--help"), ("PyYAML", "yaml", "config validate accelerate.yaml")],
)
def test_a_missing_light_package_is_named_too(
    distribution: str, module: str, words: str, folder: Path
) -> None:
    home = folder / f"without-{distribution}"
    without = python_with({*LIGHT} - {distribution}, home)
    result = run(without, "-m", "zlaunch", *words.split(), cwd=folder)
    assert result.err.startswith(f"error: zlaunch needs {module}, which is not installed in {home}\n")
    assert (result.status, len(result.err.splitlines())) == (69, 2)


def test_a_script_without_deepspeed_trains_where_deepspeed_is_not_installed(tmp_path: Path) -> None:
    python = python_with([*LIGHT, "torch"], tmp_path / "home")
    (tmp_path / "ddp.py").write_text(DDP)
    result = run(python, "-m", "zlaunch", "train", "ddp.py", cwd=tmp_path)
    assert result.status == 0, result.err
    refused = run(python, "-m", "zlaunch", "train", cwd=tmp_path)
    assert "lacks deepspeed, datasets, transformers and accelerate" in refused.err
