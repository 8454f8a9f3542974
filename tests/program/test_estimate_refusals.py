"""What `zlaunch estimate` cannot answer gets one message that says what to type, and the right exit status."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.asking import LLAMA
from tests.hub_server import hub
from tests.running import zlaunch

Case = tuple[list[str], int, str]

MODELS: dict[str, Any] = {
    "good": LLAMA,
    "list": [],
    "untyped": {"hidden_size": 64},
    "unknown": {**LLAMA, "model_type": "lama"},
    "own": {**LLAMA, "model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}},
    "negative": {**LLAMA, "hidden_size": -4},
    "huge": {**LLAMA, "num_hidden_layers": 10**30},
    "deep": {**LLAMA, "num_hidden_layers": 10**6},
    "word": {**LLAMA, "hidden_size": "big"},
    "odd": {**LLAMA, "num_attention_heads": 3},
    "inactive": {**LLAMA, "hidden_act": "nosuch"},
    "quantized": {**LLAMA, "quantization_config": {"quant_method": "awq", "bits": 4}},
    "listed": {**LLAMA, "model_type": ["llama"]},
    "table": {"model_type": "gpt2", "n_positions": 1024},
}

TRAINER = """
from transformers import HfArgumentParser, TrainingArguments
HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
block_size: int = 8
"""

CASES: dict[str, Case] = {
    "no model at all": ([], 2, "name a model, a script, or a module"),
    "a path that leads nowhere": (["./nosuch/model"], 66, "./nosuch/model"),
    "a config that is not there": (["nosuch.json"], 66, "nosuch.json"),
    "a directory without a config": (["empty"], 66, "config.json"),
    "a config that is not JSON": (["broken"], 65, "broken/config.json:1"),
    "a config that is no object": (["list"], 65, "list/config.json:1"),
    "a config without a type": (["untyped"], 65, "model_type"),
    "a type that is no name": (["listed"], 65, "`model_type` is missing or not a string"),
    "a type that transformers does not know": (["unknown"], 65, "did you mean `llama`?"),
    "a model with its own code": (["own"], 65, "--trust-remote-code"),
    "a negative size": (["negative"], 65, "negative/config.json:1"),
    "an endless model": (["huge"], 65, "num_hidden_layers"),
    "a million layers": (["deep", "--on", "8xH100"], 65, "no model has 1000000 layers"),
    "quantized weights": (["quantized", "--on", "8xH100-80GB"], 69, "uses `awq`"),
    "a model that is split over ranks": (
        ["good", "--on", "8xH100-80GB", "--set", "hybrid_engine.enabled=true", "--stage", "1"],
        69,
        "estimate it without `hybrid_engine`",
    ),
    "a sequence beyond the table of positions": (["table", "--seq-len", "2000"], 65, "--seq-len 1024"),
    "no GPUs": (["good", "--gpus", "0"], 2, "--gpus"),
    "fewer than no GPUs": (["good", "--gpus", "-8"], 2, "--gpus"),
    "an endless sequence": (["good", "--seq-len", "1" + "0" * 30], 2, "--seq-len"),
    "a batch of nothing": (["good", "--micro-batch", "0"], 2, "--micro-batch"),
    "a word for a number": (["good", "--grad-accum", "many"], 2, "--grad-accum"),
    "a GPU of another maker": (["good", "--on", "8xMI300X"], 2, "give its memory: `8x192GiB`"),
    "a GPU that nobody builds": (["good", "--on", "8xH101"], 2, "similar names are H100-80GB"),
    "more GPUs than there are": (["good", "--on", "2xH100", "--gpus", "4"], 2, "--on 2xH100"),
    "a rank of nothing": (["good", "--lora", "0"], 2, "--lora 16"),
    "an optimizer that nobody has": (["good", "--optimizer", "adamm"], 2, "did you mean `adam"),
    "an unknown option": (["good", "--stgae", "3"], 2, "--stgae"),
    "stage 0 with offload": (["good", "--stage", "0", "--offload", "cpu"], 65, "use stage 2 or 3"),
    "parameters offloaded below stage 3": (
        ["good", "--stage", "2", "--offload", "optimizer:cpu,param:cpu"],
        65,
        "use stage 3",
    ),
    "NVMe without a directory": (["good", "--stage", "3", "--offload", "nvme"], 65, "--nvme DIR"),
    "a ds_config that is not there": (["good", "--ds-config", "nosuch.json"], 66, "nosuch.json"),
    "a ds_config with mistakes": (["good", "--ds-config", "wrong.json"], 65, "wrong.json:1"),
    "a ds_config against the options": (
        ["good", "--ds-config", "batch.json", "--micro-batch", "8"],
        65,
        "batch.json:1",
    ),
    "two precisions": (["good", "--", "--bf16", "--fp16"], 65, "--bf16"),
    "a hostfile beside a number of GPUs": (["good", "--hostfile", "hosts", "--gpus", "2"], 2, "--hostfile"),
    "a stage of --set that there is not": (
        ["good", "--on", "8xH100-80GB", "--set", "zero_optimization.stage=7"],
        65,
        "it can be 0, 1, 2 or 3",
    ),
    "a picture of another format": (["good", "--plot", "x.jpg"], 2, "--plot x.svg"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("refusals")
    for name, config in MODELS.items():
        (place / name).mkdir()
        (place / name / "config.json").write_text(json.dumps(config))
    for name in ("empty", "broken"):
        (place / name).mkdir()
    (place / "broken" / "config.json").write_text("{")
    (place / "wrong.json").write_text('{"zero_optimisation": {"stage": 2}}')
    (place / "batch.json").write_text('{"train_micro_batch_size_per_gpu": 4}')
    (place / "hosts").write_text("a slots=8\nb slots=8\n")
    return place


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_estimated_is_refused_with_one_message(case: str, folder: Path) -> None:
    args, status, named = CASES[case]
    done = zlaunch("estimate", *args, cwd=folder)
    assert (done.status, done.out) == (status, "")
    assert named in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("source", "options", "hint"),
    [
        (
            "import deepspeed\ndeepspeed.initialize()",
            ["--micro-batch", "2"],
            "write `--set train_micro_batch_size_per_gpu=2`, and feed batches of this size in the script",
        ),
        (
            TRAINER,
            ["--micro-batch", "2", "--seq-len", "64", "--optimizer", "adafactor"],
            "`-- --per_device_train_batch_size 2`; for `--seq-len`, write `-- --block_size 64`; for `--optimizer`, ",
        ),
        (
            "from accelerate import Accelerator\nAccelerator()",
            ["--micro-batch", "2", "--lora", "8"],
            "for `--micro-batch`, `--lora`, change the script, or give its own argument for it after `--`",
        ),
    ],
    ids=["a plain loop", "a Trainer", "an accelerate loop"],
)
def test_an_option_about_a_training_is_answered_with_what_the_script_takes(
    source: str, options: list[str], hint: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(source)
    done = zlaunch("estimate", "train.py", *options, cwd=tmp_path)
    assert (done.status, done.out) == (2, "")
    assert hint in done.err


@pytest.mark.parametrize("asked", [["estimate", "--stage", "3"], ["estimate"], ["plan"]])
def test_a_size_that_is_no_number_is_one_finding_before_anything_is_rehearsed(
    asked: list[str], folder: Path
) -> None:
    done = zlaunch(*asked, "word", "--on", "8xH100", cwd=folder)
    assert (done.status, done.out) == (65, "")
    assert done.err.startswith("error: 1 problem found\nword/config.json:1:")


@pytest.mark.job
@pytest.mark.parametrize(
    ("asked", "model", "why"),
    [
        (["estimate", "--stage", "0"], "odd", "transformers rejects this model: ValueError"),
        (["plan"], "inactive", "transformers fails: KeyError"),
    ],
)
def test_a_model_that_transformers_refuses_fits_nowhere(
    asked: list[str], model: str, why: str, folder: Path
) -> None:
    done = zlaunch(*asked, model, "--on", "8xH100", cwd=folder)
    assert (done.status, done.out) == (65, "")
    assert why in done.err


@pytest.mark.parametrize(
    ("answer", "status", "named"),
    [
        ((403, "GatedRepo"), 66, "hf auth login"),
        ((404, "RepoNotFound"), 66, "org/model"),
        ((503, ""), 69, "503"),
    ],
)
def test_what_the_hub_refuses_is_passed_on(
    answer: tuple[int, str], status: int, named: str, tmp_path: Path
) -> None:
    with hub({"org/model": answer}) as server:
        env = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "hf")}
        done = zlaunch("estimate", "org/model", cwd=tmp_path, env=env)
    assert (done.status, done.out) == (status, "")
    assert named in done.err


@pytest.mark.parametrize("env", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_without_a_hub_nobody_can_tell(env: dict[str, str], tmp_path: Path) -> None:
    done = zlaunch("estimate", "org/model", cwd=tmp_path, env={"HF_HOME": str(tmp_path / "hf"), **env})
    assert (done.status, done.out) == (69, "")
    assert "hint: " in done.err
