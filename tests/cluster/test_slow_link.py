"""A link between two hosts that is slow, and what is said of the job."""

import json
from pathlib import Path

import pytest

from tests.cluster.bed import NAMES, Bed
from tests.running import zlaunch

pytestmark = [pytest.mark.hosts, pytest.mark.full]

TRAINING = """
import argparse, deepspeed, torch
parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int)
args = parser.parse_args()
net = torch.nn.Linear(256, 256)
config = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}
engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
for step in range(20):
    engine.backward(engine(torch.ones(4, 256)).sum())
    engine.step()
"""


def test_a_slow_link_limits_a_job_on_two_hosts(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    words = [
        "train",
        "train.py",
        "--hosts",
        ",".join(f"{name}:1" for name in NAMES),
        "--launcher",
        "torchrun",
        "--run-dir",
        "r",
    ]
    with bed.network.slowed(NAMES[1], "20mbit"):
        result = zlaunch(*words, cwd=tmp_path, env=bed.environment())
    assert result.status == 0, result.err
    losses = json.loads(zlaunch("runs", "why", "./r", "--json", cwd=tmp_path).out)["speed"]
    assert losses[0]["verdict"]["code"] == "exposed-communication"
    assert "2 ranks between 2 hosts, stage 1" in losses[0]["verdict"]["facts"]
    assert losses[0]["share"] > 0.7
