"""Every recipe trains on two ranks, by its name or as a copy in another folder.

The default recipe and the loop of its own are trained in `test_training`.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launchers import taken
from tests.memory_groups import memory_groups
from tests.running import ACTIVATED, RECIPE, Result, run, the_run, zlaunch
from zlaunch.hosts.machine.ports import free_port
from zlaunch.worker import cleanup

pytestmark = pytest.mark.job

SHORT = ("--max_steps", "6", "--logging_steps", "3", "--per_device_train_batch_size", "4")
LIMIT_BYTES = 1 << 30
SHAPE: dict[str, int] = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 9,
    "num_key_value_heads": 4,
}
"""A model of 1.0 GiB without its embeddings, in bf16."""


def trained(name: str, options: list[str], args: list[str], cwd: Path) -> str:
    result = zlaunch("train", name, "--gpus", 2, *options, "--", *args, cwd=cwd)
    assert result.status == 0, result.err
    return result.out + result.err


def copied(name: str, folder: Path) -> str:
    result = zlaunch("recipes", "copy", name, "mine", cwd=folder)
    assert result.status == 0, result.err
    return f"mine/{name}.py"


def falls(said: str) -> bool:
    """Whether the loss at the end of a run is lower than at its beginning."""
    found = re.search(r"loss ([\d.]+) -> ([\d.]+)", said)
    assert found, said
    return float(found[2]) < float(found[1])


def test_adapters_are_trained_alone_and_evaluated(tmp_path: Path) -> None:
    args = [
        "--lora_rank",
        "4",
        "--eval_fraction",
        "0.02",
        "--sequence_length",
        "64",
        "--learning_rate",
        "1e-2",
    ]
    said = trained("causal_lm", ["--stage", "3"], [*args, *SHORT], tmp_path)
    assert falls(said)
    assert "eval_loss" in said
    saved = {file.name for file in (tmp_path / "trainer_output").iterdir()}
    assert "adapter_model.safetensors" in saved
    assert "model.safetensors" not in saved


@pytest.mark.full
def test_chats_are_learned(tmp_path: Path) -> None:
    said = trained(copied("sft", tmp_path), ["--stage", "2"], ["--chats", "64", *SHORT], tmp_path)
    assert falls(said)
    assert (tmp_path / "sft_output" / "model.safetensors").exists()


@pytest.mark.full
def test_a_loop_with_accelerate_leaves_optimizer_and_schedule_to_deepspeed(tmp_path: Path) -> None:
    keys = ["optimizer.type=AdamW", "optimizer.params.lr=auto", "scheduler.type=WarmupDecayLR"]
    keys += [
        f"scheduler.params.{name}=auto" for name in ("total_num_steps", "warmup_num_steps", "warmup_max_lr")
    ]
    options = ["--stage", "3", *(word for key in keys for word in ("--set", key))]
    args = ["--steps", "8", "--warmup_steps", "2", "--batch_size", "4", "--output_dir", "out"]
    assert falls(trained(copied("accelerate_loop", tmp_path), options, args, tmp_path))
    assert (tmp_path / "out" / "model" / "model.safetensors").exists()
    written = [json.loads(line) for line in (the_run(tmp_path) / "metrics.jsonl").read_text().splitlines()]
    assert written[-1]["learning_rate"] < 2e-4


@pytest.mark.full
def test_a_loop_with_accelerate_trains_on_one_process_without_deepspeed(tmp_path: Path) -> None:
    argv = [sys.executable, RECIPE.with_name("accelerate_loop.py"), "--output_dir", "out"]
    args = ["--steps", "6", "--warmup_steps", "1", "--batch_size", "4", "--sequence_length", "64"]
    result = run(*argv, *args, cwd=tmp_path)
    assert result.status == 0, result.err
    first, last = (float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", result.out))
    assert last < first
    assert (tmp_path / "out" / "model" / "model.safetensors").exists()


@pytest.mark.full
@pytest.mark.parametrize("stage", taken([3, 2], 0))
def test_a_mixture_of_experts_is_trained(stage: int, tmp_path: Path) -> None:
    args = ["--samples", "64", "--sequence_length", "64", *SHORT]
    said = trained("moe", ["--stage", str(stage)], args, tmp_path)
    assert falls(said)
    logs = (file.read_text() for file in the_run(tmp_path).rglob("*.log"))
    assert any("leaf modules: MixtralSparseMoeBlock" in log for log in logs) == (stage == 3)


@pytest.mark.full
def test_texts_are_classified(tmp_path: Path) -> None:
    said = trained(
        copied("classification", tmp_path),
        ["--stage", "1"],
        ["--samples", "1024", "--logging_steps", "5"],
        tmp_path,
    )
    accuracy = re.search(r"eval_accuracy\s+=\s+([\d.]+)", said)
    assert accuracy
    assert float(accuracy[1]) > 0.7


def test_text_is_generated_by_ranks_that_share_a_model(tmp_path: Path) -> None:
    said = trained(
        "generate",
        ["--stage", "3", "--offload", "cpu", "--show-ranks", "all"],
        ["--new_tokens", "3"],
        tmp_path,
    )
    assert sorted(re.findall(r"rank (\d): 3 new tokens", said)) == ["0", "0", "1", "1"]


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A control group whose processes have 1 GiB of memory together."""
    with memory_groups(LIMIT_BYTES) as (group,):
        yield group


def generated(offload: dict[str, object], group: Path, folder: Path) -> Result:
    """Run `generate` in a group, on one rank."""
    zero: dict[str, object] = {
        "stage": 3,
        "stage3_param_persistence_threshold": 0,
        "stage3_max_live_parameters": 0,
    }
    zero |= {"stage3_prefetch_bucket_size": 0, "offload_param": offload}
    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": zero}
    (folder / "ds_config.json").write_text(json.dumps(config))
    environment = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_SIZE": "1",
        "DS_ACCELERATOR": "cpu",
    }
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **ACTIVATED}
    enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
    argv = [sys.executable, "mine/generate.py", "--deepspeed_config", "ds_config.json", "--new_tokens", "2"]
    try:
        return run("sh", "-c", enter, "sh", *argv, cwd=folder, env=environment)
    finally:
        cleanup.delete((), [cleanup.buffer_of(0, environment)])


@pytest.mark.full
@pytest.mark.usefixtures("libaio")
def test_a_model_larger_than_memory_generates_from_nvme_and_not_from_the_cpu(
    small_memory: Path, tmp_path: Path
) -> None:
    copied("generate", tmp_path)
    config = tmp_path / "mine" / "small_llama" / "config.json"
    config.write_text(
        json.dumps(json.loads(RECIPE.with_name("small_llama").joinpath("config.json").read_text()) | SHAPE)
    )
    (tmp_path / "swap").mkdir()
    nvme = {
        "device": "nvme",
        "nvme_path": str(tmp_path / "swap"),
        "buffer_count": 5,
        "buffer_size": 17_000_000,
    }
    result = generated(nvme, small_memory, tmp_path)
    assert result.status == 0, result.err
    assert result.out.count("2 new tokens") == 2
    assert float(re.search(r"the model has ([\d.]+) GiB", result.out)[1]) * 2**30 > LIMIT_BYTES  # type: ignore[index]
    assert generated({"device": "cpu"}, small_memory, tmp_path).status == -9
