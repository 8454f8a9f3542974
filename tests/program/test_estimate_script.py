"""`zlaunch estimate SCRIPT`: a training script is rehearsed as it is."""

from pathlib import Path

import pytest

from tests.running import ROOT, Result, zlaunch

pytestmark = pytest.mark.job

MESSY = """\
import argparse
import os
import socket
import sqlite3
import subprocess

import deepspeed
import torch
from safetensors.torch import save_file

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--fail", action="store_true")
parser.add_argument("--start", action="store_true")
args = parser.parse_args()
if args.fail:
    raise FileNotFoundError("no such dataset: rows.jsonl")

os.makedirs("out/logs", exist_ok=True)
with open("out/log.txt", "w") as log:
    log.write("begun")
os.replace("out/log.txt", "out/first.txt")
assert open("out/first.txt").read() == "begun"
with open("messy.py", "a") as log:
    log.write("# rehearsed")
assert open("messy.py").read().startswith("import argparse")
sqlite3.connect("out.sqlite").execute("create table trials (loss)")
torch.save({"rows": torch.arange(4)}, "out/rows.pt")
assert torch.load("out/rows.pt")["rows"].sum() == 6
try:
    socket.create_connection(("192.0.2.1", 80), timeout=60)
except ConnectionRefusedError:
    print("offline")

from width import WIDTH

model = torch.nn.Linear(WIDTH, WIDTH)
with torch.inference_mode():
    print(model(torch.ones(1, WIDTH)).detach().shape)
optimizer = getattr(torch.optim, "AdamW")(model.parameters())
engine, *_ = deepspeed.initialize(args=args, model=model, optimizer=optimizer)
print(subprocess.check_output(["git", "--version"]), os.system("touch out.mark"))
try:
    subprocess.run(["touch", "out.made"], check=True)
except OSError:
    print("without it")
if args.start:
    subprocess.run(["touch", "out.made"])
best = 1e9
for step in range(100):
    x = torch.randn(4, 64, device="cuda", dtype=next(engine.parameters()).dtype)
    x = torch.nn.functional.scaled_dot_product_attention(*[x[None, None]] * 3, None, 0.0, True)[0, 0]
    loss = engine(x).float().pow(2).mean()
    engine.backward(loss)
    engine.step()
    if step % 10 == 0: print(f"step {step}: loss {float(loss):.4f}")
    save_file(model.state_dict(), "out/step.safetensors")
    if loss.item() < best:
        best = loss.item()
torch.save(model.state_dict(), "out/model.pt")
"""
"""It writes files and databases, connects to others, starts programs, and decides by its loss."""

MIXED = """\
import argparse

import deepspeed
import torch

args = deepspeed.add_config_arguments(argparse.ArgumentParser()).parse_args()
model = torch.nn.Conv2d(3, 8, 3)
optimizer = torch.optim.AdamW(model.parameters())
engine, *_ = deepspeed.initialize(args=args, model=model, optimizer=optimizer)
for _ in range(3):
    loss = engine(torch.randn(4, 3, 8, 8, device=engine.device)).mean()
    engine.backward(loss)
    engine.step()
"""
"""It gives inputs of 32 bits to a model of 16."""

ON = ("--on", "8xH100-80GB", "--stage", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("script")
    (folder / "messy.py").write_text(MESSY)
    return folder


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the script finds a module that it imports."""
    library = tmp_path_factory.mktemp("library")
    (library / "width.py").write_text("WIDTH = 64\n")
    return {"PYTHONPATH": str(library)}


@pytest.fixture(scope="module")
def estimated(folder: Path, library: dict[str, str]) -> Result:
    return zlaunch("estimate", "-m", "messy", *ON, cwd=folder, env={"COLUMNS": "80", **library})


def test_the_numbers_are_those_of_the_model_that_the_program_makes(estimated: Result) -> None:
    assert "Linear of `-m messy`: 4160 parameters, all trained" in estimated.out
    assert "second step" in estimated.out


def test_a_script_that_decides_by_a_value_is_said_to_do_so_and_leaves_the_verdict_open(
    estimated: Result,
) -> None:
    said = " ".join(estimated.out.split())
    assert "messy.py:57 compares a value" in said
    assert said.count("compares a value") == 1
    assert "cannot tell whether it fits" in said
    assert estimated.status == 69


def test_what_a_script_lacks_is_said_and_how_to_compare_stages(estimated: Result) -> None:
    said = " ".join(f"{estimated.out} {estimated.err}".split())
    assert "hint: to compare, repeat it with" in said
    assert "resuming from a checkpoint is not rehearsed for scripts" in said
    assert "no traffic and no step time" in said


def test_a_script_that_is_rehearsed_leaves_nothing_behind(estimated: Result, folder: Path) -> None:
    assert estimated.out
    assert [file.name for file in folder.iterdir()] == ["messy.py"]


def test_the_error_of_a_script_is_shown_with_its_line(folder: Path) -> None:
    done = zlaunch("estimate", "messy.py", *ON, "--", "--fail", cwd=folder, env={"COLUMNS": "300"})
    assert "FileNotFoundError: no such dataset: rows.jsonl (messy.py:16)" in done.err
    assert done.status == 69


def test_a_program_that_a_script_can_do_without_is_named_with_its_line(estimated: Result) -> None:
    said = " ".join(estimated.out.split())
    for line in (41, 43):
        assert f"messy.py:{line} starts another program, which a rehearsal does not: `touch`" in said
    assert "`git`" not in said


@pytest.mark.full
def test_a_script_that_needs_another_program_cannot_be_rehearsed(
    folder: Path, library: dict[str, str]
) -> None:
    env = {"COLUMNS": "300", **library}
    done = zlaunch("estimate", "messy.py", *ON, "--", "--start", cwd=folder, env=env)
    assert "it would start `touch`, and a rehearsal starts no program that does more than tell" in done.err
    assert "(messy.py:47)" in done.err
    assert done.status == 69


def test_what_deepspeed_refuses_in_a_rehearsal_is_refused_with_its_cause(
    folder: Path, library: dict[str, str]
) -> None:
    env = {"COLUMNS": "300", **library}
    done = zlaunch("estimate", "messy.py", *ON, "--offload", "cpu", cwd=folder, env=env)
    assert "DeepSpeed cannot run the script's optimizer on the CPU (messy.py:40)" in done.err
    assert "create `deepspeed.ops.adam.DeepSpeedCPUAdam`" in done.err
    assert done.status == 65


def test_a_script_that_needs_a_gpu_is_told_what_to_change_where_there_is_none(
    folder: Path, library: dict[str, str]
) -> None:
    job = ("--gpus", "2", "--stage", "2", "--set", "train_micro_batch_size_per_gpu=4")
    env = {"COLUMNS": "300", **library}
    done = zlaunch("train", "messy.py", *job, "--rehearse", "--dry-run", cwd=folder, env=env)
    assert "it puts a tensor on `cuda`, but the job has no GPU; write `engine.device`" in done.err
    assert "(messy.py:50)" in done.err
    assert done.status == 69


def test_types_that_a_real_run_would_refuse_are_the_error_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "mixed.py").write_text(MIXED)
    done = zlaunch("estimate", "mixed.py", *ON, cwd=tmp_path, env={"COLUMNS": "300"})
    assert "mixed.py cannot be rehearsed: RuntimeError: Input type" in done.err
    assert done.status == 69


def test_an_option_about_the_training_of_a_model_has_no_place_beside_a_script(folder: Path) -> None:
    done = zlaunch("estimate", "messy.py", *ON, "--seq-len", "512", cwd=folder)
    assert "give its own argument for it after `--`" in done.err
    assert done.status == 2


def test_a_trainer_program_is_estimated_with_its_own_batches(tmp_path: Path) -> None:
    recipe = ROOT / "recipes/causal_lm.py"
    words = ("--per_device_train_batch_size", "4", "--gradient_accumulation_steps", "3")
    done = zlaunch("estimate", recipe, *ON, "--", *words, cwd=tmp_path, env={"COLUMNS": "200"})
    assert "LlamaForCausalLM of causal_lm.py: 3.25 M parameters" in done.out
    assert "4 x 128 (input_ids, attention_mask, labels): the longest of the first 32 batches" in done.out
    assert "96 = 4 per rank x 3 accumulated x 8 ranks" in done.out
    assert done.status == 0


def test_a_model_and_a_module_are_not_estimated_at_once(folder: Path) -> None:
    done = zlaunch("estimate", "llama", "-m", "messy", cwd=folder)
    assert "`llama` and `-m messy`: only one of them" in done.err
    assert done.status == 2


def test_a_search_for_a_script_names_the_command_that_estimates_it(folder: Path) -> None:
    done = zlaunch("plan", "messy.py", "--on", "8xH100-80GB", cwd=folder)
    assert "`zlaunch estimate messy.py` rehearses it" in done.err
    assert done.status == 2
