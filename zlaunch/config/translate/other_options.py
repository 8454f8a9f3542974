"""The option of zlaunch, or the Trainer's argument, that is meant by an option of another program."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from zlaunch.config.translate.flags import (
    BecomesOption,
    BecomesVariable,
    Flag,
    NoEquivalent,
    NotNeeded,
    Role,
    Untranslatable,
)
from zlaunch.config.translate.launchers import ACCELERATE, DEEPSPEED, TORCHRUN, syntax_of
from zlaunch.frozen import dataclass
from zlaunch.job.recipes import recipe_named
from zlaunch.job.script import num_mentions

_OF_ROLES: Mapping[Role, str] = {
    **dict.fromkeys((Role.RANKS, Role.ALL_RANKS), "--gpus N"),
    Role.DEVICES: "--gpus 0,1",
    **dict.fromkeys((Role.HOSTS, Role.HOSTFILE), "--hostfile FILE"),
    Role.INCLUDE: "--include HOST:0,1",
    Role.EXCLUDE: "--exclude HOST:0",
    Role.NO_SSH: "--no-ssh",
    Role.HOST_STARTER: "--launcher deepspeed",
    Role.NODE_RANK: "--node-rank N",
    Role.DS_CONFIG: "--ds-config FILE",
    Role.STAGE: "--stage 3",
    Role.OPTIMIZER_DEVICE: "--offload optimizer:cpu",
    Role.PARAM_DEVICE: "--offload param:cpu",
    **dict.fromkeys((Role.OPTIMIZER_PATH, Role.PARAM_PATH), "--nvme DIR"),
    Role.PRECISION: "--precision bf16",
    Role.ACCUMULATION: "--set gradient_accumulation_steps=N",
    Role.CLIPPING: "--set gradient_clipping=1.0",
    Role.SAVE_16BIT: "--set zero_optimization.stage3_gather_16bit_weights_on_model_save=true",
    Role.SHARDED_INIT: "--env ACCELERATE_DEEPSPEED_ZERO3_INIT=true",
    Role.USE_DEEPSPEED: "--stage 2",
    Role.MODULE: "--module NAME",
}
_NOT_NEEDED: Mapping[Role, str] = {
    **dict.fromkeys(
        (Role.MASTER_ADDR, Role.MASTER_PORT, Role.ENDPOINT), "zlaunch does the rendezvous itself"
    ),
    Role.DISTRIBUTED_TYPE: "zlaunch always uses DeepSpeed",
    Role.CONFIG_FILE: "`zlaunch config translate FILE` writes the command for a config of accelerate",
}
_PRECISIONS = "zlaunch supports bf16, fp16 and fp32"

_CHECKPOINTS = ("checkpoint", "ckpt", "resume_from", "load_checkpoint")
USUAL_IN_SCRIPTS = frozenset((*_CHECKPOINTS, "device", "cuda", "fp32"))
"""Names that many scripts define: they mean an option of zlaunch only where a script rejects them."""

SLANG: Mapping[str, str] = {
    **dict.fromkeys(("zero", "zero3", "stage"), "--stage 3"),
    "zero2": "--stage 2",
    **dict.fromkeys(("offload", "cpu_offload"), "--offload cpu"),
    "offload_optimizer": "--offload optimizer:cpu",
    "offload_param": "--offload param:cpu",
    **dict.fromkeys(("nvme", "nvme_path", "offload_nvme"), "--nvme DIR"),
    **dict.fromkeys(("gpu", "ngpus", "n_gpus", "devices", "nproc", "world_size"), "--gpus N"),
    **dict.fromkeys(("deepspeed", "config", "ds", "ds_config", "deepspeed_config"), "--ds-config FILE"),
    **dict.fromkeys(("dtype", "amp"), "--precision bf16"),
    "fp32": "--precision fp32",
    "ddp": "--stage 0",
    **dict.fromkeys(_CHECKPOINTS, "--resume DIR"),
    **dict.fromkeys(("nodes", "hosts"), "--hosts NODE1,NODE2"),
    "run_dir": "--run-dir DIR",
    "dry_run": "--dry-run",
}
"""What people call an option of zlaunch, beside the names that launchers have for it."""
_LEFT_OUT: Mapping[str, str] = {
    "fp8": _PRECISIONS,
    **dict.fromkeys(("device", "cuda"), "zlaunch gives each rank a GPU of its own"),
}
"""What people type that has no option of zlaunch."""
TRAINER_SLANG: Mapping[str, str] = {
    **dict.fromkeys(("batch_size", "bs", "batch", "micro_batch_size"), "per_device_train_batch_size"),
    **dict.fromkeys(("micro_batch", "train_micro_batch_size_per_gpu"), "per_device_train_batch_size"),
    **dict.fromkeys(("grad_accum", "gradient_accumulation", "accumulation"), "gradient_accumulation_steps"),
    "lr": "learning_rate",
    **dict.fromkeys(("epochs", "epoch", "num_epochs", "n_epochs"), "num_train_epochs"),
    **dict.fromkeys(("steps", "num_steps"), "max_steps"),
    "wd": "weight_decay",
    **dict.fromkeys(("grad_clip", "clip", "clip_grad"), "max_grad_norm"),
    **dict.fromkeys(("scheduler", "lr_scheduler"), "lr_scheduler_type"),
    **dict.fromkeys(("optimizer", "optimiser"), "optim"),
    **dict.fromkeys(("output", "out_dir", "save_dir"), "output_dir"),
    **dict.fromkeys(("workers", "num_workers"), "dataloader_num_workers"),
    **dict.fromkeys(("wandb", "tensorboard", "tracker"), "report_to"),
    **dict.fromkeys(("warmup", "num_warmup_steps"), "warmup_steps"),
    "compile": "torch_compile",
}
"""What people call an argument of the Trainer."""


LORA_RANKS = ("lora_rank", "lora_r", "lora_dim", "lora")
"""Names that scripts have for the rank of adapters: the first is that of the recipes, the second peft's."""


def of_adapters(words: Sequence[str], value: str | None) -> str:
    """Say how the script of a command line, or else a recipe, is told the rank of adapters."""
    rank = value or "16"
    for word in words:
        program = recipe_named(word) or Path(word)
        if not program.is_file():
            continue
        source = program.read_text("utf-8", "replace")
        if names := [name for name in LORA_RANKS if num_mentions(name, source)]:
            return f"it is an argument of the script: `zlaunch train {word} -- --{names[0]} {rank}`"
    return (
        f"adapters are up to the script: `zlaunch train causal_lm -- --lora_rank {rank}` trains some; "
        f"for scripts of TRL, it is `--use_peft --lora_r {rank}` after `--`"
    )


@dataclass(frozen=True, slots=True)
class OtherOption:
    """What an option of another program is here."""

    option: str | None
    """That of zlaunch, with a value as an example; None if there is none."""
    why: str = ""
    """Why there is none."""


_STANDS_FOR_ITSELF = ("zero2", "zero3", "fp32", "ddp", "num_nodes", "nnodes", "num_machines")
"""Options whose value is not that of the option here."""
_VALUES: Mapping[str, str] = {
    "--gpus": r"[1-9]\d*|\d+(,\d+)*,?",
    "--stage": "[0-3]",
    "--offload": "cpu|nvme|none",
    "--precision": "bf16|fp16|fp32",
    "--node-rank": r"\d+",
    "--max-restarts": r"\d+",
}
"""What an option here takes; others take anything but a number."""
_ANY_VALUE = r"(?!\d+$|true$|false$)[^-].*"
_OPEN_VALUES = ("N", "1.0", "…")
"""Values that stand for another one, behind the name of a key or a variable."""


def other_option(name: str, value: str | None = None) -> OtherOption | None:
    """Find what an option is here, by its name without dashes; None for one of no launcher, or slang.

    `value` is the one that was typed for it, which is kept if the option takes it here.
    """
    name = _plain(name)
    if (other := _other_option(name)) is None:
        return None
    if other.option is None or value is None or name in _STANDS_FOR_ITSELF:
        return other
    return replace(other, option=_with_value(other.option, value))


def _other_option(name: str) -> OtherOption | None:
    for launcher in (DEEPSPEED, TORCHRUN, ACCELERATE):
        for flag in syntax_of(launcher).flags:
            if name in map(_plain, flag.names) and len(name) > 1:
                return becomes(flag)
    if name in SLANG:
        return OtherOption(SLANG[name])
    if name in _LEFT_OUT:
        return OtherOption(None, _LEFT_OUT[name])
    return None


def _with_value(option: str, value: str) -> str:
    name, _, example = option.partition(" ")
    if not example or name == "--launcher":
        return option
    before = ""
    if name in ("--set", "--env"):
        key, _, example = example.partition("=")
        before = f"{key}="
        if example not in _OPEN_VALUES:
            return option
    elif not re.fullmatch(_VALUES.get(name, _ANY_VALUE), value):
        return option
    elif name == "--offload" and ":" in example:
        before = f"{example.partition(':')[0]}:"
    return f"{name} {before}{shlex.quote(value)}"


def trainer_argument(name: str) -> str | None:
    """Find the Trainer's argument, without dashes, that people mean by another name."""
    return TRAINER_SLANG.get(_plain(name))


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def becomes(flag: Flag) -> OtherOption:
    """Say what a flag of a launcher is here."""
    match flag.becomes:
        case Role() as role:
            return OtherOption(_OF_ROLES.get(role), _NOT_NEEDED.get(role, ""))
        case BecomesOption(name):
            return OtherOption(f"{name} …")
        case BecomesVariable(name, value):
            return OtherOption(f"--env {name}={value or '…'}")
        case NotNeeded(why) | NoEquivalent(why) | Untranslatable(why):
            return OtherOption(None, why)
