import json
from pathlib import Path

import pytest

from tests.running import zlaunch

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
