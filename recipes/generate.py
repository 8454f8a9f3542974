"""Generate text with a model larger than memory: ZeRO-Inference.

Without an optimizer, stage 3 keeps the weights on the CPU or on NVMe, divided among the ranks, and gathers
one layer at a time. So memory bounds the size of a layer, not of the model. Each rank continues its share of
the prompts; a large batch is worth it, as each pass through the model moves all weights once.

    zlaunch train generate --stage 3 --offload cpu -- --model MODEL
    zlaunch train generate --stage 3 --offload nvme --nvme DIR -- --model MODEL
    deepspeed generate.py --deepspeed_config ds_config.json --model MODEL
    torchrun --nproc_per_node 2 generate.py --deepspeed_config ds_config.json
    accelerate launch generate.py --deepspeed_config ds_config.json

ZeRO: stage 3 without an optimizer; CPU and NVMe offload.

On GPUs: nothing has to change. The layers that compute are on the GPU, all others where `offload_param` says.
Without --model, a small Llama with random weights writes nonsense. After `zlaunch train causal_lm`, try
`--model trainer_output`.
"""

import argparse
import json
import resource
from pathlib import Path

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, ByT5Tokenizer
from transformers.integrations import HfDeepSpeedConfig

SMALL_LLAMA = Path(__file__).parent / "small_llama"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    parser.add_argument("--model", help="model on the Hub, or a local directory")
    parser.add_argument("--prompts", help="text file with one prompt per line")
    parser.add_argument("--new_tokens", type=int, default=16, help="most tokens to generate")
    parser.add_argument("--batch_size", type=int, default=8, help="prompts at once on each rank")
    args = parser.parse_args()
    if args.deepspeed_config is None:
        parser.error("--deepspeed_config is missing")
    return args


def read_prompts(args: argparse.Namespace, rank: int, ranks: int) -> list[list[str]]:
    """Return the batches of this rank; all ranks have as many, as they gather each layer together."""
    prompts = ["def main(", "import "] * ranks
    if args.prompts:
        prompts = Path(args.prompts).read_text().splitlines()
    each = -(-len(prompts) // ranks)
    of_rank = (prompts * 2)[rank * each : (rank + 1) * each]
    return [of_rank[start : start + args.batch_size] for start in range(0, each, args.batch_size)]


def main() -> None:
    """Load the model, divided and offloaded, and let it continue the prompts."""
    args = parse()
    deepspeed.init_distributed()
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    config = json.loads(Path(args.deepspeed_config).read_text())
    dtype = torch.float32
    if config.get("bf16", {}).get("enabled"):
        dtype = torch.bfloat16
    kept = HfDeepSpeedConfig(config)  # as long as it lives, models are partitioned when they are created
    if not kept.is_zero3():
        raise SystemExit("only stage 3 divides the weights; the ds_config has another stage")
    if args.model:
        tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
    else:
        tokenizer = ByT5Tokenizer(padding_side="left")
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(SMALL_LLAMA), dtype=dtype)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    engine = deepspeed.initialize(model=model, config=kept.config)[0]
    engine.module.eval()
    for prompts in read_prompts(args, rank, ranks):
        inputs = tokenizer(prompts, return_tensors="pt", padding=True).to(engine.device)
        if (inputs["input_ids"][:, -1] == tokenizer.eos_token_id).all():  # T5's tokenizers end each prompt
            inputs = {name: values[:, :-1] for name, values in inputs.items()}
        with torch.no_grad():
            ids = engine.module.generate(
                **inputs, max_new_tokens=args.new_tokens, do_sample=False, synced_gpus=ranks > 1
            )
        for row in ids[:, inputs["input_ids"].shape[1] :]:
            text = tokenizer.decode(row, skip_special_tokens=True)
            print(f"rank {rank}: {len(row)} new tokens: {text!r}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    size = sum(one.ds_numel for one in model.parameters()) * dtype.itemsize / 2**30
    print(f"rank {rank}: the model has {size:.2f} GiB, this process had up to {peak:.2f} GiB of host memory")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
