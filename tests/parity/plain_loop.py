"""A training script with a plain loop, whose loss is computed outside of the model, and which saves each step.

With `--defect NAME` it first puts that defect into the engine.
"""

import argparse
import os

import deepspeed
import torch
from torch import nn

from tests.parity import seeded

parser = argparse.ArgumentParser()
parser.add_argument("--defect")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--backwards", type=int, default=1, help="beyond what the engine expects in a step")
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
for _ in range(asked.steps * engine.gradient_accumulation_steps()):
    for _ in range(asked.backwards):
        inputs, labels = torch.randn(4, 16).to(dtype), torch.randint(4, (4,))
        loss = nn.functional.cross_entropy(engine(inputs).float(), labels)
        engine.backward(loss)
    engine.step()
    torch.save(model.state_dict(), "newest.pt")
engine.save_checkpoint("checkpoints")
