"""The loss of a step that zlaunch shows is the one that the program itself would log."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.running import zlaunch

pytestmark = pytest.mark.job

SCRIPT = """
import json, os, sys
import deepspeed, torch
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.state import AcceleratorState, GradientState
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

logged = []
CONFIG = {"zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True, "steps_per_print": 10**9,
          "train_micro_batch_size_per_gpu": 2}
batches = [torch.randn(2, 8, generator=torch.Generator().manual_seed(i)) * (i + 1) for i in range(30)]


def net():
    torch.manual_seed(0)
    return torch.nn.Linear(8, 1)


def mean(losses):
    return sum(loss.item() for loss in losses) / len(losses)


def engine_loop(accumulation):
    model = net()
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
                                      config={**CONFIG, "gradient_accumulation_steps": accumulation})
    for step in range(3):
        losses = []
        for batch in batches[step * accumulation:(step + 1) * accumulation]:
            losses.append(engine(batch).pow(2).mean())
            engine.backward(losses[-1])
            engine.step()
        logged.append(["engine", accumulation, mean(losses)])


def accelerate_loop(accumulation):
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    config = {**CONFIG, "gradient_accumulation_steps": accumulation}
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    plugin = DeepSpeedPlugin(hf_ds_config=config)
    accelerator = Accelerator(gradient_accumulation_steps=accumulation, deepspeed_plugin=plugin)
    model = net()
    loader = torch.utils.data.DataLoader(torch.cat(batches[:2 * accumulation + 1]), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3), loader)
    losses = []
    for batch in loader:
        with accelerator.accumulate(model):
            losses.append(model(batch).pow(2).mean())
            accelerator.backward(losses[-1])
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            logged.append(["accelerate", accumulation, mean(losses)])
            losses = []


def trainer(accumulation):
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    generator = torch.Generator().manual_seed(0)
    rows = []
    for number in range(2 * (2 * accumulation + 1)):
        ids = torch.randint(0, 64, (8,), generator=generator)
        rows.append({"input_ids": ids, "labels": torch.where(torch.arange(8) < 2 + number % 7, ids, -100)})
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                                         num_attention_heads=2, num_key_value_heads=2))
    config = {"zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True, "bf16": {"enabled": False},
              "gradient_accumulation_steps": "auto", "train_micro_batch_size_per_gpu": "auto"}
    args = TrainingArguments("out", per_device_train_batch_size=2, gradient_accumulation_steps=accumulation,
                             num_train_epochs=1, logging_steps=1, use_cpu=True, report_to="none", save_strategy="no",
                             deepspeed=config, disable_tqdm=True, bf16=False, learning_rate=1e-2)
    run = Trainer(model=model, args=args, train_dataset=rows)
    run.train()
    logged.extend(["trainer", accumulation, row["loss"]] for row in run.state.log_history if "loss" in row)


for train in (engine_loop, accelerate_loop, trainer):
    for accumulation in map(int, sys.argv[1:]):
        train(accumulation)
json.dump(logged, open("logged.json", "w"))
"""


@pytest.mark.parametrize(
    "accumulations", [(3,), pytest.param(tuple(range(1, 9)), marks=pytest.mark.full)], ids=["3", "1-8"]
)
def test_the_loss_of_a_step_is_the_one_that_an_engine_loop_accelerate_and_a_trainer_log(
    accumulations: tuple[int, ...], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [
        "train",
        "train.py",
        "--gpus",
        "1",
        "--no-ask",
        "--force",
        "--run-dir",
        "r",
        "--",
        *accumulations,
    ]
    result = zlaunch(*words, cwd=tmp_path)
    logged: list[list[Any]] = json.loads((tmp_path / "logged.json").read_text()) if result.status == 0 else []
    lines = [json.loads(line) for line in (tmp_path / "r" / "steps.jsonl").read_text().splitlines()]
    shown = [line["step_loss"] for line in lines if "step_loss" in line]
    assert result.status == 0, result.err
    assert [kind for kind, _, _ in logged].count("trainer") >= 3 * len(accumulations)
    assert shown == pytest.approx([loss for _, _, loss in logged], rel=1e-3), logged
