"""A loop of your own with accelerate, with or without DeepSpeed.

The same loop runs on one process, with DDP, and with any ZeRO stage. If the ds_config has an `optimizer` or a
`scheduler`, DeepSpeed creates them, and the loop passes `DummyOptim` and `DummyScheduler` in their place,
which fill in what is "auto" there.

    zlaunch train accelerate_loop --stage 2
    zlaunch train accelerate_loop --set optimizer.type=AdamW
    accelerate launch --use_deepspeed --num_processes 2 accelerate_loop.py
    torchrun --nproc_per_node 2 accelerate_loop.py --ds_config ds_config.json
    deepspeed accelerate_loop.py --ds_config ds_config.json
    python accelerate_loop.py

ZeRO: stages 0 to 3; CPU and NVMe offload.

On GPUs: nothing has to change. Without a GPU, accelerate joins ranks only under zlaunch.
"""

import argparse
import os
import sysconfig
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, DummyOptim, DummyScheduler, set_seed
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForCausalLM, ByT5Tokenizer, get_linear_schedule_with_warmup

SMALL_LLAMA = Path(__file__).parent / "small_llama"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60, help="number of optimizer steps")
    parser.add_argument("--batch_size", type=int, default=8, help="samples per rank in a micro-batch")
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches per optimizer step")
    parser.add_argument("--sequence_length", type=int, default=128, help="tokens per sample")
    parser.add_argument("--learning_rate", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument("--warmup_steps", type=int, default=10, help="steps until the peak")
    parser.add_argument("--ds_config", help="ds_config, for launchers that do not pass one to accelerate")
    parser.add_argument("--output_dir", help="where to save the state and the model at the end")
    return parser.parse_args()


def read_blocks(length: int) -> list[torch.Tensor]:
    """Cut 128 KiB of Python's standard library into samples of equal length."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py"))
    text = "".join(file.read_text("utf-8", "replace") for file in files[:20])[: 128 * 1024]
    return list(torch.tensor(ByT5Tokenizer()(text)["input_ids"]).split(length))[:-1]


def main() -> None:
    """Train the model."""
    args = parse()
    plugin = None
    if args.ds_config:
        plugin = DeepSpeedPlugin(hf_ds_config=args.ds_config)
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulation, deepspeed_plugin=plugin)
    set_seed(0)
    plugin = accelerator.state.deepspeed_plugin  # also where the launcher has named the ds_config
    config = plugin.deepspeed_config if plugin else {}
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(SMALL_LLAMA))
    loader = DataLoader(read_blocks(args.sequence_length), batch_size=args.batch_size, shuffle=True)
    create = torch.optim.AdamW
    if "optimizer" in config:
        create = DummyOptim
    optimizer = create(model.parameters(), lr=args.learning_rate)
    if "scheduler" in config:
        total = args.steps * accelerator.num_processes  # accelerate divides it, but not the warmup
        schedule = DummyScheduler(optimizer, total, args.warmup_steps)
    else:  # which accelerate steps once for each rank, but DeepSpeed once
        times = 1 if plugin else accelerator.num_processes
        schedule = get_linear_schedule_with_warmup(optimizer, args.warmup_steps * times, args.steps * times)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    if resume := os.environ.get("ZLAUNCH_RESUME"):
        accelerator.load_state(resume)
    model.train()
    step = 0
    while step < args.steps:
        for ids in loader:
            with accelerator.accumulate(model):
                loss = model(input_ids=ids, labels=ids).loss
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            step += accelerator.sync_gradients
            if accelerator.sync_gradients and step in (1, args.steps):
                accelerator.print(f"step {step}: loss {loss.item():.4f}")
            if step >= args.steps:
                break
    if args.output_dir:
        accelerator.save_state(args.output_dir)
        state = accelerator.get_state_dict(model)  # gathered, at stage 3
        accelerator.unwrap_model(model).save_pretrained(
            Path(args.output_dir, "model"), is_main_process=accelerator.is_main_process, state_dict=state
        )
    accelerator.end_training()


if __name__ == "__main__":
    main()
