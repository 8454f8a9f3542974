"""Bottlenecks made on purpose in real jobs, and what is said of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.running import zlaunch

pytestmark = [pytest.mark.job, pytest.mark.full]

MODEL = """
import os, time, torch

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, at):
        time.sleep({of_a_sample})
        return {{"x": torch.ones(64), "labels": torch.zeros(1)}}

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.out = torch.nn.Linear(64, 1)
        self.num_passes = 0
    def forward(self, x, labels=None):
        self.num_passes += 1
        time.sleep(0.02)
        if int(os.environ["RANK"]) == {slow_rank}:
            time.sleep(0.03)
        if self.num_passes > {jumps_after}:
            time.sleep(0.03)
        return {{"loss": (self.out(x) - labels).pow(2).mean()}}
"""
LOOPS = {
    "trainer": """
from transformers import HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Trainer(Net(), args, train_dataset=Rows()).train()
""",
    "accelerate": """
from accelerate import Accelerator
accelerator, net = Accelerator(), Net()
loader = torch.utils.data.DataLoader(Rows(), batch_size=4)
net, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters()), loader)
for batch in loader:
    accelerator.backward(net(**batch)["loss"])
    optimizer.step()
    optimizer.zero_grad()
""",
    "engine": """
import argparse, deepspeed
parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int)
args, net = parser.parse_args(), Net()
engine, *_ = deepspeed.initialize(args=args, model=net, model_parameters=net.parameters())
for batch in torch.utils.data.DataLoader(Rows(), batch_size=4):
    engine.backward(engine(**batch)["loss"])
    engine.step()
    if engine.global_steps == 50:
        break
""",
}
HEALTHY = {"of_a_sample": 0.0, "slow_rank": -1, "jumps_after": 1000}
OPTIMIZER = 'optimizer={"type": "AdamW", "params": {"torch_adam": true, "lr": 0.001}}'
ADAM = ("--precision", "fp32", "--set", OPTIMIZER)


def limits(folder: Path, loop: str, *options: str, **bottleneck: Any) -> list[dict[str, Any]]:
    """Run a job with a bottleneck, and return what limits its speed."""
    source = MODEL.format(**{**HEALTHY, **bottleneck}) + LOOPS[loop]
    (folder / "train.py").write_text(source)
    argv = ["train", "train.py", "--run-dir", "run", "--gpus", "2", "--stage", "1", *options]
    assert zlaunch(*argv, cwd=folder).status == 0
    why = zlaunch("runs", "why", "./run", "--json", cwd=folder)
    found: list[dict[str, Any]] = json.loads(why.out)["speed"]
    return found


TRAINER = (
    "--set",
    "zero_optimization.reduce_bucket_size=100000",
    "--",
    "--max_steps",
    "40",
    "--save_strategy",
    "no",
)


@pytest.mark.parametrize(
    ("loop", "options"),
    [
        ("trainer", ("--launcher", "torchrun", *TRAINER)),
        ("accelerate", ("--launcher", "deepspeed", "--set", "train_micro_batch_size_per_gpu=4")),
        ("engine", ("--launcher", "torchrun", "--set", "train_micro_batch_size_per_gpu=4", *ADAM)),
    ],
)
def test_a_slow_loader_is_what_limits_a_job(loop: str, options: tuple[str, ...], tmp_path: Path) -> None:
    found = limits(tmp_path, loop, *options, of_a_sample=0.01)
    assert found[0]["verdict"]["code"] == "waiting-for-data"
    assert 0.4 < found[0]["share"] < 0.9


def test_a_slow_rank_is_named(tmp_path: Path) -> None:
    options = ("--launcher", "deepspeed", "--set", "train_micro_batch_size_per_gpu=4", *ADAM)
    verdict = limits(tmp_path, "engine", *options, slow_rank=1)[0]["verdict"]
    assert verdict["cause"].startswith("rank 1 on ")
    assert any(fact.startswith("forward takes") for fact in verdict["facts"])


def test_a_step_that_takes_longer_from_the_thirtieth_on_is_told(tmp_path: Path) -> None:
    options = ("--launcher", "torchrun", "--set", "train_micro_batch_size_per_gpu=4", *ADAM)
    found = limits(tmp_path, "engine", *options, jumps_after=30)
    (cause,) = [one["verdict"]["cause"] for one in found if one["verdict"]["code"] == "slower-steps"]
    assert cause.startswith("from step 31 on")
