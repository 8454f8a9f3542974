"""A loop with DeepSpeed's engine whose losses depend on its seed, its ranks and nothing else."""

import argparse
import os

import deepspeed
import torch

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--say")
args = parser.parse_args()

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
engine, *_ = deepspeed.initialize(args=args, model=model, optimizer=optimizer)
torch.manual_seed(1 + torch.distributed.get_rank())
for step in range(1, args.steps + 1):
    x = torch.randn(4, 8)
    loss = (engine(x.to(next(engine.parameters()).dtype)).float() - x.sum(1, keepdim=True)).square().mean()
    engine.backward(loss)
    engine.step()
    torch.distributed.all_reduce(loss)
    print(f"step {step}: loss {loss.item()!r}", flush=True)
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "on", os.uname().nodename, flush=True)
print("said", args.say, flush=True)
torch.distributed.destroy_process_group()
