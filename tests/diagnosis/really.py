"""Make the installed packages say, for real, what the signatures look for; prints one JSON object.

A program of its own: `python really.py FOLDER`. Each function provokes one exception and is named after its code.
"""

import datetime as dt
import json
import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
SECOND = dt.timedelta(seconds=1)


class Mpu:
    """What DeepSpeed asks for the size of the world, without a process group."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *_: 2


def host_allocation_failed() -> None:
    import torch

    torch.empty(1 << 60)


def disk_full() -> None:
    import torch

    torch.save({"a": torch.ones(100_000)}, "/dev/full")


def disk_full__text() -> None:
    Path("/dev/full").write_text("x" * 100_000)


def checkpoint_corrupt() -> None:
    import torch

    torch.save({"a": torch.ones(100_000)}, FOLDER / "torn.pt")
    (FOLDER / "torn.pt").write_bytes((FOLDER / "torn.pt").read_bytes()[:-1000])
    torch.load(FOLDER / "torn.pt")


def checkpoint_corrupt__empty() -> None:
    import torch

    (FOLDER / "empty.pt").write_bytes(b"")
    torch.load(FOLDER / "empty.pt")


def checkpoint_corrupt__safetensors() -> None:
    from safetensors.torch import load_file

    (FOLDER / "torn.safetensors").write_bytes(b"abcdefgh123" * 10)
    load_file(FOLDER / "torn.safetensors")


def checkpoint_corrupt__truncated() -> None:
    import torch

    torch.save({"a": torch.ones(10)}, FOLDER / "old.pt", _use_new_zipfile_serialization=False)
    (FOLDER / "cut.pt").write_bytes((FOLDER / "old.pt").read_bytes()[:60])
    torch.load(FOLDER / "cut.pt", weights_only=False)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def not_downloaded() -> None:
    import torch

    (FOLDER / "pointer.pt").write_text(POINTER)
    torch.load(FOLDER / "pointer.pt")


def not_downloaded__pickle() -> None:
    import torch

    (FOLDER / "pointer.pt").write_text(POINTER)
    torch.load(FOLDER / "pointer.pt", weights_only=False)


def not_downloaded__page() -> None:
    import torch

    (FOLDER / "page.pt").write_text("<!DOCTYPE html><html></html>")
    torch.load(FOLDER / "page.pt")


def weights_only_refused() -> None:
    import torch

    torch.save({"a": socket.AddressFamily.AF_INET}, FOLDER / "odd.pt")
    torch.load(FOLDER / "odd.pt")


def weights_only_refused__protocol() -> None:
    import pickle

    import torch

    (FOLDER / "plain.pt").write_bytes(pickle.dumps({"a": [1.5] * 100}))
    torch.load(FOLDER / "plain.pt")


def checkpoint_of_another_model() -> None:
    import torch

    torch.nn.Linear(2, 2).load_state_dict({})


def sharded_weights() -> None:
    import torch

    torch.nn.Linear(2, 2).load_state_dict({"weight": torch.empty(0), "bias": torch.ones(2)})


def port_taken() -> None:
    import torch.distributed as dist

    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        dist.TCPStore("127.0.0.1", taken.getsockname()[1], 1, is_master=True, timeout=SECOND)


def rendezvous_failed() -> None:
    import torch.distributed as dist

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dist.TCPStore("127.0.0.1", free.getsockname()[1], 2, is_master=False, timeout=SECOND)


def rendezvous_failed__clients() -> None:
    import torch.distributed as dist

    dist.TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=SECOND, wait_for_workers=True)


def no_gpu() -> None:
    import torch

    torch.ones(1, device="cuda:0")


def import_moved() -> None:
    from transformers.deepspeed import HfDeepSpeedConfig  # noqa: F401


def import_moved__name() -> None:
    from transformers import AdamW  # noqa: F401


def module_missing() -> None:
    __import__("no_such_module_anywhere")


def wrong_arguments() -> None:
    from transformers import HfArgumentParser, TrainingArguments

    HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(["--output_dir", "x", "--lrr", "3"])


def hub_unreachable() -> None:
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained("nobody/no-such-model")


def hub_unreachable__data() -> None:
    from datasets import load_dataset

    load_dataset("no-such-data-set")


def trainer_argument_missing() -> None:
    from transformers import TrainingArguments

    TrainingArguments("x", evaluation_strategy="no")


def trainer_argument_missing__trainer() -> None:
    from transformers import Trainer

    Trainer(tokenizer=None)


def nothing_trainable() -> None:
    import torch

    torch.optim.AdamW([])


def nothing_trainable__stage_3() -> None:
    from deepspeed.runtime.zero.utils import defragment

    class Stage3:
        def __init__(self) -> None:
            defragment([])

    Stage3()


def model_not_found() -> None:
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained("./nope/nope/nope")


def read_config(config: dict[str, Any]) -> None:
    from deepspeed.runtime.config import DeepSpeedConfig

    DeepSpeedConfig(config, Mpu())


def config_refused() -> None:
    read_config({"train_batch_size": 8, "zero_optimization": {"stage": 4}})


def config_refused__both() -> None:
    read_config({"train_batch_size": 8, "fp16": {"enabled": True}, "bf16": {"enabled": True}})


def config_refused__no_batch() -> None:
    read_config({})


def removed_setting() -> None:
    read_config({"train_batch_size": 8, "elasticity": {"enabled": False}})


def batch_mismatch() -> None:
    read_config(
        {"train_batch_size": 7, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1}
    )


def bad_warmup() -> None:
    import torch
    from deepspeed.runtime.lr_schedules import WarmupLR

    WarmupLR(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0), warmup_num_steps=0)


def not_launched() -> None:
    import deepspeed

    deepspeed.init_distributed("gloo")


def loss_scale_collapsed() -> None:
    import torch
    from deepspeed.runtime.fp16 import loss_scaler

    loss_scaler.dist.get_rank = lambda *_: 0
    scaler = loss_scaler.DynamicLossScaler(
        init_scale=2,
        scale_window=10,
        min_scale=1,
        delayed_shift=1,
        consecutive_hysteresis=False,
        dtype=torch.float16,
    )
    for _ in range(5):
        scaler.update_scale(True)


PROVOKED = [
    thing
    for thing in vars().copy().values()
    if getattr(thing, "__module__", "") == __name__ and thing.__name__.islower() and thing is not read_config
]


def main() -> None:
    said = {}
    for provoke in PROVOKED:
        try:
            provoke()
        except BaseException as error:  # noqa: BLE001  whatever it is, it is recorded
            said[provoke.__name__] = {
                "type": type(error).__name__,
                "message": str(error),
                "traceback": traceback.format_exc(),
            }
    (FOLDER / "said.json").write_text(json.dumps(said), "utf-8")


if __name__ == "__main__":
    os.environ |= {"DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1"}
    main()
