"""A program of another project trains on two hosts as it does on one: TRL's own `sft`, which knows no zlaunch."""

import json
import re
from pathlib import Path

import pytest

from tests.cluster.bed import Bed
from tests.launchers import taken
from tests.running import zlaunch

pytestmark = pytest.mark.hosts

TEMPLATE = "{% for one in messages %}{{ one.role }}: {{ one.content }}{{ eos_token }}\n{% endfor %}"
STEPS = "--max_steps 4 --logging_steps 1 --per_device_train_batch_size 2 --learning_rate 1e-2 --max_length 64"
HERE = "--output_dir out --save_strategy no --report_to none --use_cpu --bf16 False --seed 1"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights, whose tokens are bytes, and chats to learn."""
    import torch
    from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("inputs")
    tokenizer = ByT5Tokenizer(chat_template=TEMPLATE)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=len(tokenizer), pad_token_id=0, eos_token_id=1, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "chats").mkdir()
    chats = [
        [{"role": "user", "content": f"count to {n}"}, {"role": "assistant", "content": "1 2 3 4"[:n]}]
        for n in range(1, 33)
    ]
    lines = [json.dumps({"messages": chat}) for chat in chats]
    (folder / "chats" / "train.jsonl").write_text("\n".join(lines))
    return folder


def losses(folder: Path, *flags: object, inputs: Path, env: dict[str, str]) -> list[str]:
    folder.mkdir()
    named = ["--model_name_or_path", inputs / "model", "--dataset_name", inputs / "chats"]
    words = [*named, *STEPS.split(), *HERE.split()]
    result = zlaunch("train", *flags, "--run-dir", "r", "-m", "trl.scripts.sft", *words, cwd=folder, env=env)
    assert result.status == 0, result.err
    return re.findall(r"'loss': '?([\d.]+)", (folder / "r" / "logs" / "rank-0.log").read_text())


@pytest.mark.full
@pytest.mark.parametrize("stage", taken((3, 2), 0))
def test_sft_of_trl_trains_on_two_hosts_as_on_one(stage: int, bed: Bed, inputs: Path, tmp_path: Path) -> None:
    env = {**bed.environment(), "HF_HUB_OFFLINE": "1"}
    words = ["--stage", stage, "--precision", "fp32"]
    over = ["--hostfile", bed.hostfile, "--launcher", "torchrun"]
    there = losses(tmp_path / "there", *words, *over, inputs=inputs, env=env)
    here = losses(tmp_path / "here", *words, inputs=inputs, env={"HF_HUB_OFFLINE": "1"})
    assert len(here) == 4
    assert there == here
