"""A training script with a plain loop, whose loss is computed outside of the model, and which saves each step.

With `--defect NAME` it first puts that defect into the engine.
"""

import argparse
import os
import signal
import sys

import deepspeed
import torch
from torch import nn

from tests.parity import seeded

parser = argparse.ArgumentParser()
parser.add_argument("--defect")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--backwards", type=int, default=1, help="beyond what the engine expects in a step")
parser.add_argument("--fault", choices=("nan", "killed", "left"), help="what happens in the second step")
asked = parser.parse_args()
if asked.defect is not None:
    getattr(seeded, asked.defect)()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
engine, *_ = deepspeed.initialize(
    model=model, optimizer=optimizer, config=os.environ["ZLAUNCH_DS_CONFIG"], dist_init_required=True
)
torch.manual_seed(1 + torch.distributed.get_rank())
dtype = next(engine.module.parameters()).dtype
for step in range(asked.steps * engine.gradient_accumulation_steps()):
    if asked.fault == "killed" and step == 1 and torch.distributed.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if asked.fault == "left" and step == 1:
        sys.exit(3)
    for _ in range(asked.backwards):
        inputs, labels = torch.randn(4, 16).to(dtype), torch.randint(4, (4,))
        loss = nn.functional.cross_entropy(engine(inputs).float(), labels)
        if asked.fault == "nan":
            loss = loss * float("nan")
        engine.backward(loss)
    engine.step()
    torch.save(model.state_dict(), "newest.pt")
engine.save_checkpoint("checkpoints")
