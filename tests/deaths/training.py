"""Trains with DeepSpeed for a few steps, and dies of it in the way its argument names: `training.py FUNCTION`."""

import atexit
import os
import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch

ADAM = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": ADAM,
    "zero_optimization": {"stage": 1},
    "steps_per_print": 1000000,
}


def start(config: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def train(engine: Any, value: float, steps: int = 3) -> None:
    for _ in range(steps):
        batch = torch.full((1, 8), value, dtype=next(engine.parameters()).dtype)
        engine.backward(engine(batch).float().mean() * value)
        engine.step()


def dying() -> None:
    Path(f"moment-{os.environ.get('RANK', '0')}").touch()


def config_is_refused() -> None:
    try:
        start(CONFIG | {"zero_optimization": {"stage": 2, "no_such_key": 1}})
    finally:
        dying()


def overflows_in_fp16() -> None:
    # torch computes in fp16 on every CPU; DeepSpeed asks for one with fast kernels.
    deepspeed.get_accelerator().is_fp16_supported = lambda: True
    engine = start(CONFIG | {"fp16": {"enabled": True, "initial_scale_power": 1, "hysteresis": 1}})
    try:
        train(engine, 60000.0, steps=20)
    finally:
        dying()


def saves() -> None:
    engine = start(CONFIG)
    train(engine, 1.0)
    engine.save_checkpoint(sys.argv[2])


def loads() -> None:
    engine = start(CONFIG)
    try:
        engine.load_checkpoint(sys.argv[2])
    finally:
        dying()


def stumbles() -> None:
    if os.environ["RANK"] == "1":
        atexit.register(os.abort)
        atexit.register(dying)
    train(start(CONFIG), 1.0)


def waits() -> None:
    import time

    train(start(CONFIG), 1.0)
    print("ready", flush=True)
    time.sleep(1000)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
