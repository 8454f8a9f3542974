"""A training loop of your own with the DeepSpeed engine.

A small network learns a sine. The ds_config arrives as `--deepspeed_config`, as with any launcher, and the
checkpoint of `zlaunch train --resume` in a variable. DeepSpeed cannot run torch's AdamW on the CPU: for
`--offload cpu`, create `deepspeed.ops.adam.DeepSpeedCPUAdam` in a copy.

    zlaunch train own_loop --stage 2 --save out
    zlaunch train own_loop --stage 2 --save out --resume latest -- --steps 900
    deepspeed own_loop.py --deepspeed_config ds_config.json
    torchrun --nproc_per_node 2 own_loop.py --deepspeed_config ds_config.json

ZeRO: stages 0 to 3; CPU offload in a copy with DeepSpeed's Adam.

On GPUs: nothing changes. The ranks are placed on GPUs, torch uses NCCL.
"""

import argparse
import os

import deepspeed
import torch

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--steps", type=int, default=100, help="number of training steps")
parser.add_argument("--learning_rate", type=float, default=3e-3, help="learning rate of AdamW")
parser.add_argument("--output_dir", help="where to save a checkpoint at the end")
args = parser.parse_args()

model = torch.nn.Sequential(torch.nn.Linear(1, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)  # zlaunch's presets have none
engine, *_ = deepspeed.initialize(args=args, model=model, optimizer=optimizer)
torch.manual_seed(torch.distributed.get_rank())  # different samples on each rank
if resume := os.environ.get("ZLAUNCH_RESUME"):
    engine.load_checkpoint(resume)

for step in range(engine.global_steps + 1, args.steps + 1):
    x = 6 * torch.rand(engine.train_micro_batch_size_per_gpu(), 1, device=engine.device) - 3
    y = engine(x.to(next(engine.parameters()).dtype)).float()
    loss = torch.nn.functional.mse_loss(y, x.sin())
    engine.backward(loss)
    engine.step()
    if torch.distributed.get_rank() == 0 and step in (1, args.steps):
        print(f"step {step}: loss {loss.item():.4f}")
if args.output_dir:
    engine.save_checkpoint(args.output_dir)
torch.distributed.destroy_process_group()
