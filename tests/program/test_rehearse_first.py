import json
from pathlib import Path

import pytest

from tests.running import the_run, zlaunch

pytestmark = pytest.mark.job

WIDE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5504,
    "num_hidden_layers": 4,
    "num_attention_heads": 16,
    "vocab_size": 32000,
    "max_position_embeddings": 512,
    "dtype": "bfloat16",
}


def ds_config(folder: Path, buffer_count: int) -> Path:
    param = {
        "device": "nvme",
        "nvme_path": "/nowhere",
        "buffer_count": buffer_count,
        "buffer_size": 70_000_000,
    }
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {"stage": 3, "offload_param": param},
    }
    file = folder / "ds_config.json"
    file.write_text(json.dumps(config, indent=2))
    (folder / "config.json").write_text(json.dumps(WIDE))
    return file


def test_what_deepspeed_would_refuse_in_its_first_step_is_found_at_its_line(tmp_path: Path) -> None:
    file = ds_config(tmp_path, buffer_count=2)
    result = zlaunch(
        "config", "validate", file, "--rehearse", "--model", tmp_path, "--world-size", "4", cwd=tmp_path
    )
    assert result.status == 65
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if "buffer_count" in text)
    assert f"ds_config.json:{line}:" in result.out
    assert "Not enough buffers" in result.out


def test_a_rehearsal_of_what_works_finds_nothing(tmp_path: Path) -> None:
    file = ds_config(tmp_path, buffer_count=40)
    result = zlaunch(
        "config", "validate", file, "--rehearse", "--model", tmp_path, "--world-size", "4", cwd=tmp_path
    )
    assert "deepspeed-gives-up" not in result.out
    assert result.status == 0


def test_a_rehearsal_without_a_model_says_what_to_type(tmp_path: Path) -> None:
    result = zlaunch("config", "validate", ds_config(tmp_path, buffer_count=40), "--rehearse", cwd=tmp_path)
    assert result.status == 2
    assert "--model DIR --world-size N" in result.err


ZERO = "zero_optimization"
CPU = {"DS_ACCELERATOR": "cpu"}


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the recipe for three steps, rehearsed, with buckets of 1 GB; return the run directory."""
    folder = tmp_path_factory.mktemp("rehearsed")
    words = ("--rehearse", "--gpus", "1", "--stage", "2", "--set", f"{ZERO}.reduce_bucket_size=500000000")
    result = zlaunch("train", *words, "--", "--max_steps", "3", cwd=folder, env=CPU)
    assert result.status == 0, result.err
    return the_run(folder)


def test_a_run_that_was_rehearsed_keeps_what_was_foretold(rehearsed: Path) -> None:
    foretold = json.loads((rehearsed / "forecast.json").read_text())
    assert foretold["method"] == "rehearsal"
    assert [phase["name"] for phase in foretold["phases"]][-1] == "save"


def test_what_was_foretold_of_the_memory_of_a_host_comes_true(rehearsed: Path) -> None:
    shown = zlaunch("runs", "show", rehearsed, "--json", cwd=rehearsed)
    pools = {pool["name"]: pool for pool in json.loads(shown.out)["memory"]["pools"]}
    assert abs(pools["host, resident"]["percent"]) < 25


def test_a_dry_run_says_what_a_start_would_find_out_and_starts_nothing(tmp_path: Path) -> None:
    words = ("own_loop", "--gpus", "2", "--dry-run", "--rehearse")  # of whose model nothing is known
    result = zlaunch("train", *words, cwd=tmp_path, env=CPU)
    assert result.status == 0, result.err
    assert "memory check before the start" in result.out
    assert "cannot tell" not in result.out
    assert "GiB with its " in result.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_a_dry_run_ends_like_the_start_that_deepspeed_would_refuse(tmp_path: Path) -> None:
    file = ds_config(tmp_path, buffer_count=2)
    words = ("--ds-config", file, "--gpus", "1", "--", "--model", tmp_path, "--from_scratch")
    for first in (("--dry-run", "--rehearse"), ("--rehearse",)):
        result = zlaunch("train", *first, *words, cwd=tmp_path, env=CPU)
        assert result.status == 65
        assert "Not enough buffers" in result.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.full
def test_auto_takes_no_stage_where_none_is_needed_and_one_where_memory_is_short(tmp_path: Path) -> None:
    """On a CPU all ranks share the memory of the host: replicas of 18 bytes a parameter, or partitions."""
    from psutil import virtual_memory

    other, depth = 4 * 2048**2 + 2 * 32000 * 2048 / 8, 8
    width = (virtual_memory().total / 34 / depth - other) / (3 * 2048)
    config = {**WIDE, "num_hidden_layers": depth, "intermediate_size": round(width)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ("train", "--stage", "auto", "--dry-run", "--force", "--gpus", "2")
    small = zlaunch(*words, cwd=tmp_path, env=CPU)
    large = zlaunch(*words, "--", "--model", tmp_path, "--from_scratch", cwd=tmp_path, env=CPU)
    assert "ZeRO stage 0" in small.out
    assert "ZeRO stage 1" in large.out


def test_one_program_rehearses_all_that_a_start_asks(tmp_path: Path) -> None:
    """Every Python notes its command line when it starts."""
    log, hook = tmp_path / "log", tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        f"import sys\nwith open({str(log)!r}, 'a') as log:\n    print(sys.orig_argv, file=log)\n"
    )
    env = {**CPU, "PYTHONPATH": str(hook), "ZLAUNCH_CACHE": "off"}
    words = ("--stage", "auto", "--rehearse", "--dry-run", "--gpus", "1")
    result = zlaunch("train", *words, cwd=tmp_path, env=env)
    assert result.status == 0, result.err
    assert log.read_text().count("'zlaunch.estimate.rehearsal.program'") == 1
