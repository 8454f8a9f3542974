"""Save checkpoints of all kinds with the real packages: `torchrun --nproc-per-node 2 -m tests.checkpoint.save DIR`.

Every checkpoint gets `DIR/NAME/`; for those of an engine, `DIR/NAME.safetensors` has the weights that
DeepSpeed's own conversion makes of it.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch  # noqa: TID253 - a program of its own
from torch import nn  # noqa: TID253
from torch.distributed import barrier, get_rank  # noqa: TID253

from tests.checkpoint.engines import ADAPTERS, ENGINES, MODELS

STEPS = 3


class Net(nn.Module):  # type: ignore[misc]
    """Shapes that no number of ranks divides, a buffer, a frozen and a tied parameter."""

    def __init__(self, inputs: int = 7) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, 33)
        self.middle = nn.Linear(33, 33)
        self.frozen = nn.Linear(33, 5)
        self.last = nn.Linear(33, 7, bias=False)
        self.tied = self.last
        self.register_buffer("scale", torch.tensor([0.5, 2.0, 1.0]))
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a loss."""
        hidden = torch.tanh(self.middle(torch.tanh(self.first(x))))
        return (self.last(hidden) * self.scale[1]).pow(2).mean() + self.frozen(hidden).pow(2).mean() * 0


def engine(config: dict[str, Any], inputs: int = 7, steps: int = STEPS) -> Any:
    """Train a few steps; parameters are in two groups."""
    import deepspeed

    torch.manual_seed(0)
    stage = config["zero_optimization"]["stage"]
    common = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "Adam", "params": {"lr": 0.01}}}
    whole = {**common, **config}
    if "optimizer" not in config and "offload_optimizer" not in config["zero_optimization"]:
        whole["optimizer"] = {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}}
    if stage == 3:
        with deepspeed.zero.Init(config_dict_or_path=whole):
            model = Net(inputs)
    else:
        model = Net(inputs)
    trained = [(name, one) for name, one in model.named_parameters() if one.requires_grad]
    groups = [
        {"params": [one for name, one in trained if "bias" not in name], "weight_decay": 0.1},
        {"params": [one for name, one in trained if "bias" in name], "weight_decay": 0.0},
    ]
    made, *_ = deepspeed.initialize(model=model, model_parameters=groups, config=whole)
    dtype = torch.bfloat16 if "bf16" in config else torch.float32
    for step in range(steps):
        torch.manual_seed(step * 2 + get_rank())
        loss = made(torch.randn(2, inputs).to(dtype))
        made.backward(loss)
        made.step()
    return made


def in_fp32(made: Any) -> dict[str, torch.Tensor]:
    """Gather what was trained from all ranks, in fp32, and add the buffers."""
    from deepspeed.utils import safe_get_full_fp32_param

    trained = {name: one for name, one in made.module.named_parameters() if one.requires_grad}
    whole = {name: safe_get_full_fp32_param(one) for name, one in trained.items()}
    return {**whole, **dict(made.module.named_buffers())}


def save_engines(out: Path, names: list[str]) -> None:
    """Save checkpoints as a loop with an engine does."""
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    from safetensors.torch import save_file

    for name in names:
        made = engine(ENGINES[name])
        made.save_checkpoint(str(out / name), client_state={"epoch": 1})
        barrier()
        weights = (
            in_fp32(made) if name == "bf16-optimizer" else None
        )  # zero_to_fp32 takes it for no checkpoint
        if get_rank() == 0 and ENGINES[name]["zero_optimization"]["stage"]:
            weights = weights or get_fp32_state_dict_from_zero_checkpoint(str(out / name))
            save_file({key: value.clone() for key, value in weights.items()}, out / f"{name}.safetensors")
        barrier()
        made.destroy()


def save_others(out: Path) -> None:
    """Save what does not belong to the checkpoints above: of a later step, of a wider model, of stage 1."""
    for tag, name, inputs, steps in (
        ("later", "zero2", 7, STEPS + 1),
        ("wider", "zero2", 9, STEPS),
        ("wider3", "zero3", 9, STEPS),
        ("zero1", "zero1", 7, STEPS),
    ):
        made = engine(ENGINES[name], inputs, steps)
        made.save_checkpoint(str(out / "others"), tag=tag)
        made.destroy()


SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


@contextlib.contextmanager
def trained(
    make: Callable[[], nn.Module], stage: int, more: dict[str, Any] | None = None
) -> Iterator[tuple[Any, torch.Tensor]]:
    """Train a model of transformers for two steps; yield the engine, and what it answers."""
    import deepspeed
    from transformers.integrations import HfDeepSpeedConfig

    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
        **(more or {}),
    }
    kept_alive = HfDeepSpeedConfig(config)
    model = make()
    parameters = [one for one in model.parameters() if one.requires_grad]
    made, *_ = deepspeed.initialize(model=model, model_parameters=parameters, config=config)
    for step in range(2):
        torch.manual_seed(step * 2 + get_rank())
        tokens = torch.randint(0, 96, (2, 8))
        made.backward(made(input_ids=tokens, labels=tokens).loss)
        made.step()
    made.eval()
    with torch.no_grad():
        yield made, made(input_ids=torch.arange(12)[None]).logits.contiguous()
    barrier()
    made.destroy()
    del kept_alive


def save_models(out: Path) -> None:
    """Save models of transformers as a Trainer does, and what they answer."""
    import transformers
    from safetensors.torch import save_file

    for name, (config_class, stage, settings) in MODELS.items():
        torch.manual_seed(0)
        sizes = getattr(transformers, config_class)(**SIZES, **settings)
        make = partial(transformers.AutoModelForCausalLM.from_config, sizes, dtype=torch.bfloat16)
        with trained(make, stage, {"bf16": {"enabled": True}}) as (made, logits):
            folder = out / "models" / name
            made.save_checkpoint(str(folder))
            if get_rank() == 0:
                sizes.architectures = [type(made.module).__name__]
                sizes.save_pretrained(folder)
                save_file({"logits": logits}, out / "models" / f"{name}.safetensors")


def save_adapters(out: Path) -> None:
    """Save LoRA adapters in fp32, and what the adapted model answers; the model under them is `base`."""
    import peft
    import transformers
    from safetensors.torch import save_file

    folder, auto = out / "adapters", transformers.AutoModelForCausalLM
    if get_rank() == 0:
        torch.manual_seed(0)
        sizes = transformers.LlamaConfig(**SIZES, tie_word_embeddings=False, attention_bias=True)
        auto.from_config(sizes).save_pretrained(folder / "base")
    barrier()
    for name, (stage, with_frozen, settings) in ADAPTERS.items():
        lora = peft.LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"], **settings)

        def make(lora: Any = lora) -> Any:
            model = auto.from_pretrained(folder / "base", dtype=torch.float32)
            return peft.get_peft_model(model, lora, autocast_adapter_dtype=False)

        with trained(make, stage) as (made, logits):
            made.save_checkpoint(str(folder / name), exclude_frozen_parameters=not with_frozen)
            if get_rank() == 0:
                lora.save_pretrained(folder / name)
                save_file({"logits": logits}, folder / f"{name}.safetensors")

    def make_in_bf16() -> Any:
        model = auto.from_pretrained(folder / "base", dtype=torch.bfloat16)
        return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))

    with trained(make_in_bf16, 3, {"bf16": {"enabled": True}}) as (made, _):  # peft makes adapters in fp32
        made.save_checkpoint(str(folder / "lora3-bf16"), exclude_frozen_parameters=True)


class Experts(nn.Module):  # type: ignore[misc]
    """A model with DeepSpeed's own MoE layer, whose experts are shared out among so many ranks."""

    def __init__(self, ranks: int) -> None:
        from deepspeed.moe.layer import MoE

        super().__init__()
        self.first = nn.Linear(7, 8)
        room = {"eval_capacity_factor": 4.0}  # for every sample in one expert, so that none is left out
        self.moe = MoE(8, nn.Linear(8, 8), num_experts=4, ep_size=ranks, k=1, **room)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the layer answers."""
        hidden, *_ = self.moe(self.first(x))
        return hidden


EXPERTS_ASKED = torch.linspace(-1, 1, 56).reshape(8, 7).to(torch.bfloat16)
EXPERTS: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "bf16": {"enabled": True},
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
}


def experts_engine(ranks: int) -> Any:
    """Make an engine for such a model."""
    import deepspeed
    from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer

    torch.manual_seed(0)
    model = Experts(ranks)
    groups = {"params": [*model.parameters()], "name": "all"}
    parameters = split_params_into_different_moe_groups_for_optimizer(groups)
    made, *_ = deepspeed.initialize(model=model, model_parameters=parameters, config=EXPERTS)
    return made


def save_experts(out: Path) -> None:
    """Save a model whose experts are shared out among the ranks, and what it answers."""
    from safetensors.torch import save_file

    made = experts_engine(ranks=2)
    made.backward(made(torch.randn(8, 7).to(torch.bfloat16)).float().pow(2).mean())
    made.step()
    made.save_checkpoint(str(out / "experts"))
    here = {name: one.contiguous() for name, one in made.module.state_dict().items()}
    save_file(here, out / f"experts-{get_rank()}.safetensors")
    made.eval()
    with torch.no_grad():
        answer = made(EXPERTS_ASKED).float()
    if get_rank() == 0:
        (out / "experts-answer.json").write_text(json.dumps(answer.flatten().tolist()))
    barrier()
    made.destroy()


def save_parallel(out: Path) -> None:
    """Save a pipeline of two stages, and a model that tensor parallelism cuts in two, with its whole weights."""
    import deepspeed
    import transformers
    from deepspeed.pipe import PipelineModule
    from safetensors.torch import save_file

    common = {"optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}}}
    config = {
        **common,
        "train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "zero_optimization": {"stage": 1},
    }
    layers = PipelineModule([nn.Linear(8, 8) for _ in range(4)], num_stages=2, loss_fn=nn.MSELoss())
    made, *_ = deepspeed.initialize(model=layers, model_parameters=[*layers.parameters()], config=config)
    made.train_batch(iter(lambda: (torch.ones(2, 8), torch.ones(2, 8)), None))
    made.save_checkpoint(str(out / "pipeline"))
    made.destroy()
    torch.manual_seed(0)
    config = {**common, "train_batch_size": 2, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    sizes = transformers.LlamaConfig(**SIZES, tie_word_embeddings=False)
    model = transformers.AutoModelForCausalLM.from_config(sizes, dtype=torch.bfloat16)
    config |= {"tensor_parallel": {"autotp_size": 2}}
    made, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    tokens = torch.arange(16).reshape(2, 8)
    made.backward(made(input_ids=tokens, labels=tokens).loss)
    made.step()
    made.save_checkpoint(str(out / "tensor-parallel"))
    whole = made._consolidated_16bit_state_dict()
    if get_rank() == 0:
        here = {name: one.clone() for name, one in whole.items()}
        save_file(here, out / "tensor-parallel.safetensors")
    barrier()
    made.destroy()


def save_dcp(out: Path) -> None:
    """Save as torch.distributed.checkpoint does."""
    import torch.distributed.checkpoint as dcp

    dcp.save({"model": {"weight": torch.ones(4, 3), "bias": torch.zeros(3)}}, checkpoint_id=str(out / "dcp"))


def save_accelerate(out: Path) -> None:
    """Save as accelerate's `save_state` does."""
    from accelerate import Accelerator, DeepSpeedPlugin, state

    from zlaunch.worker.hook.accelerate_cpu import allow_deepspeed

    allow_deepspeed(state)  # else both ranks write the random numbers of rank 0 at once
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": 2},
        "bf16": {"enabled": True},
    }
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config), mixed_precision="bf16")
    net = Net()
    made, _ = accelerator.prepare(
        net, torch.optim.AdamW([one for one in net.parameters() if one.requires_grad])
    )
    loss = made(torch.randn(2, 7).to(torch.bfloat16))
    accelerator.backward(loss)
    accelerator.save_state(str(out / "accelerate"))
    made.destroy()


def main(out: Path, names: list[str]) -> None:
    """Save those that are named, or all."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    deepspeed.init_distributed("gloo")
    out.mkdir(parents=True, exist_ok=True)
    save_engines(out, [name for name in ENGINES if not names or name in names])
    if not names or "others" in names:
        save_others(out)
    if not names or "models" in names:
        save_models(out)
    if not names or "experts" in names:
        save_experts(out)
    if not names or "adapters" in names:
        save_adapters(out)
    if not names or "dcp" in names:
        save_dcp(out)
    if not names or "accelerate" in names:
        save_accelerate(out)
    if not names or "parallel" in names:
        save_parallel(out)
    torch.distributed.barrier()  # a rank that ends early ends those that are still busy
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # a thread of gloo may abort a process that Python finalizes


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
