"""`train --dry-run` for machines that are not there, or are not asked."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.running import zlaunch


def planned(folder: Path, *words: object) -> dict[str, Any]:
    result = zlaunch("train", "--dry-run", "--json", *words, cwd=folder)
    assert result.status == 0, result.err
    plan: dict[str, Any] = json.loads(result.out)
    return plan


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "hosts").write_text("nowhere1 slots=8\nnowhere2\n")
    return tmp_path


def test_hosts_that_are_imagined_have_all_their_gpus(folder: Path) -> None:
    plan = planned(folder, "train.py", "--on", "2x8xH100-80GB")
    assert (plan["accelerator"], len(plan["ranks"])) == ("cuda", 16)
    assert plan["within"] == "8 x NVIDIA H100 80GB HBM3, 79.1 GiB each, as `--on` says; no machine is asked"
    assert [(slot["host"], slot["device"]) for slot in plan["ranks"][7:9]] == [("host-0", 7), ("host-1", 0)]


def test_hosts_that_are_not_asked_are_like_this_one_or_like_those_that_are_imagined(folder: Path) -> None:
    words = ("train.py", "--hostfile", "hosts", "--offline")
    assert len(planned(folder, *words)["ranks"]) == 8 + 2
    assert len(planned(folder, *words, "--on", "4xA100-40GB")["ranks"]) == 8 + 4


@pytest.mark.parametrize(
    "environ",
    [
        {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "nowhere1"},
        {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "nowhere[1-2]"},
    ],
    ids=["NNODES", "Slurm"],
)
def test_nodes_that_variables_name_are_planned_without_asking_them(
    environ: dict[str, str], folder: Path
) -> None:
    result = zlaunch("train", "train.py", "--dry-run", "--offline", "--json", cwd=folder, env=environ)
    assert len({slot["host"] for slot in json.loads(result.out)["ranks"]}) == 2, result.err


def test_a_drive_of_hosts_that_are_imagined_need_not_be_here(folder: Path) -> None:
    words = ("--stage", "3", "--offload", "nvme", "--nvme", "/local/nvme", "--on", "8xH100-80GB")
    assert "async_io" in planned(folder, *words)["native_ops"]


@pytest.mark.full
def test_a_job_that_does_not_fit_there_is_refused(folder: Path) -> None:
    model = {"model_type": "llama", "hidden_size": 16384, "num_hidden_layers": 3, "num_attention_heads": 64}
    sizes = {"intermediate_size": 65536, "vocab_size": 32000, "num_key_value_heads": 8}
    (folder / "config.json").write_text(json.dumps({**model, **sizes, "architectures": ["LlamaForCausalLM"]}))
    words = ("--on", "1xH100-80GB", "--stage", "2", "--", "--model", folder, "--from_scratch")
    result = zlaunch("train", "--dry-run", *words, cwd=folder)
    assert (result.status, "does-not-fit" in result.err) == (65, True), result.err


def test_a_plan_for_hosts_that_are_imagined_has_nothing_of_this_machine(folder: Path) -> None:
    (folder / "own.py").write_text("from transformers import Trainer\nTrainer().train()\n")
    result = zlaunch("train", "--dry-run", "own.py", "--on", "8xH100-80GB", cwd=folder)
    assert result.status == 0, result.err
    for of_this_machine in ("are free", "OMP_NUM_THREADS", "TORCH_EXTENSIONS_DIR"):
        assert of_this_machine not in result.out


LOOP = "import deepspeed\nengine, *_ = deepspeed.initialize(args, model=Net())\n"
UNKNOWN = "\nmemory is not checked: the model is unknown; see `zlaunch estimate MODEL`\n"


@pytest.mark.parametrize(
    ("script", "words", "is_said"),
    [
        (LOOP, ["--on", "2x8xH100-80GB"], True),
        (LOOP, [], False),
        ("print('no engine')\n", ["--on", "2x8xH100-80GB"], False),
    ],
    ids=["GPUs", "no GPUs", "no DeepSpeed"],
)
def test_a_plan_for_gpus_says_that_an_unknown_model_is_not_checked(
    script: str, words: list[str], is_said: bool, folder: Path
) -> None:
    (folder / "own.py").write_text(script)
    result = zlaunch("train", "--dry-run", "--no-ask", *words, "own.py", cwd=folder)
    assert (result.status, UNKNOWN in result.out) == (0, is_said), result.out + result.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--on", "8xH100-80GB"], "add `--dry-run`"),
        (["--offline"], "add `--dry-run`"),
        (["--on", "2x8xH1000", "--dry-run"], "did you mean"),
    ],
)
def test_what_makes_no_plan_is_wrong_usage(words: list[str], said: str, folder: Path) -> None:
    result = zlaunch("train", "train.py", *words, cwd=folder)
    assert (result.status, said in result.err) == (2, True), result.err
