"""`zlaunch init`: what it finds, asks and writes."""

import os
import pty
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli.test_job_file import parsed
from tests.running import ROOT, ZLAUNCH, run, start, zlaunch
from zlaunch.cli.planned_job import stage_and_offload
from zlaunch.cli.project import look_around
from zlaunch.cli.views.job_file_text import Answers, job_file_text
from zlaunch.estimate.strategies import Strategy
from zlaunch.estimate.workload import Lora
from zlaunch.job.args import ScriptArgs
from zlaunch.job.spec import Offload, Stage

TRAINER = """
from transformers import HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Trainer(args=args).train()
"""
LOADS = """
import argparse
from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("--model_name_or_path")
args, _ = parser.parse_known_args()
model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)
Trainer(model=model, args=TrainingArguments("out")).train()
"""
HAS_ITS_OWN = """
from transformers import Trainer, TrainingArguments
Trainer(args=TrainingArguments("out", deepspeed="ds_config.json")).train()
"""
TEXT = st.text("abcXYZ019 ./_'\"#:-\\$é", min_size=1, max_size=10).filter(
    lambda text: text.strip() == text and text[0] != "-"
)


ANSWERS = st.builds(
    Answers,
    script=TEXT,
    takes_model=st.just(True),
    model=TEXT | st.just(""),
    gpus=st.sampled_from(["", "2", "0,2", "2,"]),
    memory=st.sampled_from(["0", "3", "auto", "3 cpu", "2 optimizer:cpu,param:none"]),
    save=TEXT | st.just(""),
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answers=ANSWERS)
def test_the_file_that_is_written_is_the_job_of_the_answers(tmp_path: Path, answers: Answers) -> None:
    answers = replace(answers, script=answers.script if not answers.model else "causal_lm")
    file = tmp_path / "zlaunch.yaml"
    file.write_text(job_file_text(answers), "utf-8")
    stage, _, offload = answers.memory.partition(" ")
    words = [answers.script, "--stage", stage]
    for flag, text in (("--offload", offload), ("--gpus", answers.gpus), ("--save", answers.save)):
        words += [flag, text] if text else []
    args = ["--model", answers.model] if answers.model else []
    assert parsed("train", "--job", file) == parsed("train", "--job", "none", *words, "--", *args)


@pytest.mark.parametrize(
    ("memory", "has_gpus", "is_said"), [("2", False, True), ("2", True, False), ("auto", False, False)]
)
def test_a_stage_from_a_machine_without_a_gpu_says_so(memory: str, has_gpus: bool, is_said: bool) -> None:
    text = job_file_text(Answers("a.py", memory=memory, has_gpus=has_gpus))
    assert ("# Chosen on a machine without a GPU" in text) == is_said


def test_scripts_that_train_are_found_and_others_are_not(tmp_path: Path) -> None:
    files = {"a.py": TRAINER, "scripts/pretrain.py": TRAINER, "test_a.py": TRAINER, "setup.py": "import sys"}
    for name, text in {**files, "broken.py": "from transformers import ("}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert look_around(tmp_path).scripts == (Path("scripts/pretrain.py"), Path("a.py"))


@pytest.mark.parametrize(
    "line",
    ["import torch, deepspeed", "import torch; import deepspeed", "import os, accelerate.utils as utils"],
)
def test_a_script_is_found_however_its_imports_are_written(tmp_path: Path, line: str) -> None:
    (tmp_path / "train.py").write_text(f"{line}\n")
    (tmp_path / "notes.py").write_text(f'"""{line}"""\n')
    assert look_around(tmp_path).scripts == (Path("train.py"),)


def test_without_questions_it_takes_what_it_finds(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    (tmp_path / "ds_config.json").write_text('{"zero_optimization": {"stage": 2}}')
    done = zlaunch("init", "--yes", cwd=tmp_path)
    params, _ = parsed("train", "--job", tmp_path / "zlaunch.yaml")
    assert done.status == 0, done.err
    assert (params["script"], str(params["ds_config"]), params["save"]) == (
        "train.py",
        "ds_config.json",
        "out",
    )
    assert params["stage"] is params["offload"] is None


def test_nothing_is_written_beside_the_ds_config_that_a_script_passes_itself(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HAS_ITS_OWN)
    (tmp_path / "ds_config.json").write_text('{"zero_optimization": {"stage": 3}}')
    assert zlaunch("init", "--yes", cwd=tmp_path).status == 0
    params, _ = parsed("train", "--job", tmp_path / "zlaunch.yaml")
    assert (params["script"], params["stage"], params["ds_config"]) == ("train.py", None, None)
    planned = zlaunch("train", "--dry-run", "--no-ask", cwd=tmp_path)
    assert (planned.status, "own-config" in planned.out + planned.err) == (0, False)


def test_the_number_of_gpus_is_left_to_the_machine_that_trains(tmp_path: Path) -> None:
    zlaunch("init", "--yes", cwd=tmp_path)
    assert "\n# gpus: 2\n" in (tmp_path / "zlaunch.yaml").read_text()


def test_what_it_writes_in_an_empty_directory_can_be_planned(tmp_path: Path) -> None:
    zlaunch("init", "--yes", cwd=tmp_path)
    done = zlaunch("train", "--dry-run", cwd=tmp_path)
    assert (done.status, done.err.splitlines()[0]) == (0, "using zlaunch.yaml: script, stage, save")


@pytest.mark.job
def test_a_planned_job_is_a_recipe_with_what_fits_and_its_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, on = str(ROOT / "recipes" / "small_llama"), "1xRTX-4090"
    words = ("--recipe", "causal_lm", "--model", model, "--on", on, "--lora", "8", "--seq-len", "128")
    done = zlaunch("init", *words, cwd=tmp_path)
    assert done.status == 0, done.err
    monkeypatch.chdir(tmp_path)
    file = Path("zlaunch.yaml")
    params, args = parsed("train", "--job", file)
    assert (params["script"], params["stage"], params["on"]) == ("causal_lm.py", "0", None)
    assert ScriptArgs.of(args).value("lora_rank") == "8"
    assert "--model" in args
    estimated, _ = parsed("estimate", "--job", file)
    assert (estimated["model"], estimated["lora"], estimated["on"]) == (model, Lora(8), on)
    estimate = [line for line in done.out.splitlines() if not line.startswith("method ")]
    assert [line for line in estimate if f"#   {line}" not in file.read_text()] == []
    assert "zlaunch train --job none causal_lm.py -- --max_steps 2" in file.read_text()
    assert done.err.startswith("planning for ")


@pytest.mark.parametrize(
    ("stage", "offload", "text"),
    [
        (2, Offload("none", "none"), "2"),
        (2, Offload("cpu", "none"), "2 cpu"),
        (3, Offload("cpu", "none"), "3 optimizer:cpu"),
        (3, Offload("nvme", "nvme"), "3 nvme"),
    ],
)
def test_what_is_planned_has_its_stage_and_offload(stage: Stage, offload: Offload, text: str) -> None:
    assert stage_and_offload(Strategy(stage, offload, "")) == text


def test_what_is_planned_is_a_recipe_that_fine_tunes_its_model(tmp_path: Path) -> None:
    done = zlaunch("init", "--recipe", "classification", "--model", "gpt2", cwd=tmp_path)
    assert (done.status, "hint: use `causal_lm` or `moe`" in done.err) == (2, True)


@pytest.mark.parametrize("words", [["--on", "1xH100"], ["--lora", "8"], ["--model", "gpt2"]], ids=str)
def test_options_of_a_plan_need_a_recipe(tmp_path: Path, words: list[str]) -> None:
    assert "hint: add `--recipe causal_lm`" in zlaunch("init", "--yes", *words, cwd=tmp_path).err


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "zlaunch.yaml").write_text("stage: 3\n")
    done = zlaunch("init", "--yes", cwd=tmp_path)
    assert (done.status, (tmp_path / "zlaunch.yaml").read_text()) == (69, "stage: 3\n")
    assert zlaunch("init", "--yes", "--force", cwd=tmp_path).status == 0


def test_without_a_terminal_it_asks_nothing_and_says_so(tmp_path: Path) -> None:
    done = run(*ZLAUNCH, "init", cwd=tmp_path)
    assert (done.status, [*tmp_path.iterdir()]) == (2, [])
    assert "hint: `zlaunch init --yes`" in done.err


def answered(folder: Path, lines: Sequence[str]) -> str:
    """Run it on a terminal, and type these lines."""
    ours, its = pty.openpty()
    with start("init", cwd=folder, stdin=its, stdout=its, stderr=its) as program:
        os.close(its)
        os.write(ours, "".join(f"{line}\n" for line in lines).encode())
        said = b""
        while True:
            try:
                said += (chunk := os.read(ours, 4096))
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
        program.wait(60)
    os.close(ours)
    return said.decode()


def test_five_answers_become_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(LOADS)
    said = answered(tmp_path, ["", "gpt2", "2x8xH100-80GB", "3 cpu", "runs/out"])
    params, args = parsed("train", "--job", tmp_path / "zlaunch.yaml")
    assert (params["script"], params["stage"], params["offload"]) == ("train.py", "3", Offload("cpu")), said
    assert args == ["--model_name_or_path", "gpt2"]
    assert parsed("estimate", "--job", tmp_path / "zlaunch.yaml")[0]["on"] == "2x8xH100-80GB"


@pytest.mark.parametrize("wrong", ["9", "3 disk", "absent.json"])
def test_an_answer_that_cannot_work_is_asked_again(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    said = answered(tmp_path, ["", "2", wrong, "1", ""])
    assert parsed("train", "--job", tmp_path / "zlaunch.yaml")[0]["stage"] == "1", said
    assert "error" in said
