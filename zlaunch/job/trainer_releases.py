"""How `transformers.TrainingArguments` changed between releases.

Each row names the first release with the change, from the last patch of each minor release, 4.46 to 5.24.
`make matrix` compares several releases with contract tests.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from zlaunch.errors import Finding
from zlaunch.units import numbers_of

Value = bool | int | float | str

OLDEST, NEWEST = "4.46", "5.24"

DEFAULTS: Mapping[str, Value] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "learning_rate": 5e-5,
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "max_grad_norm": 1.0,
    "max_steps": -1,
    "warmup_steps": 0.0,
    "warmup_ratio": 0.0,
    "lr_scheduler_type": "linear",
    "lr_scheduler_kwargs": "",
    "bf16": False,
    "fp16": False,
    "bf16_full_eval": False,
    "fp16_full_eval": False,
    "use_cpu": False,
    "save_on_each_node": False,
    "optim": "adamw_torch_fused",
    "optim_args": "",
    "optim_target_modules": "",
    "auto_find_batch_size": False,
    "save_only_model": False,
    "load_best_model_at_end": False,
    "ddp_find_unused_parameters": False,
    "ddp_bucket_cap_mb": 0,
    "ddp_broadcast_buffers": False,
    "ddp_static_graph": False,
}
"""The arguments that affect a ds_config or that it affects, with their last defaults; empty for None."""

OLDER_DEFAULTS: Mapping[str, tuple[Mapping[str, str], Value]] = {
    "optim": ({"transformers": "4.54", "torch": "2.8"}, "adamw_torch"),
    "warmup_steps": ({"transformers": "5.0"}, 0),
}
"""Argument → the first releases with the last default, and the default before any of them."""

REMOVED: Mapping[str, tuple[str, str]] = {
    "adafactor": ("5.0", "use `--optim adafactor`"),
    "dispatch_batches": ("4.51", "use `--accelerator_config '{\"dispatch_batches\": true}'`"),
    "evaluation_strategy": ("4.51", "use `--eval_strategy`"),
    "fp16_backend": ("5.0", "remove it: PyTorch's implementation is used"),
    "fp16_opt_level": ("5.0", "remove it: apex is no longer supported"),
    "fsdp_min_num_params": ("5.0", "use `--fsdp_config`"),
    "fsdp_transformer_layer_cls_to_wrap": ("5.0", "use `--fsdp_config`"),
    "group_by_length": ("5.2", "use `--train_sampling_strategy group_by_length`"),
    "half_precision_backend": ("5.0", "remove it: PyTorch's implementation is used"),
    "include_inputs_for_metrics": ("5.0", "use `--include_for_metrics inputs`"),
    "include_tokens_per_second": ("5.0", "remove it"),
    "jit_mode_eval": ("5.0", "remove it"),
    "logging_dir": ("5.15", "use the environment variable `TENSORBOARD_LOGGING_DIR`"),
    "mp_parameters": ("5.0", "remove it"),
    "no_cuda": ("5.0", "use `--use_cpu`"),
    "overwrite_output_dir": ("5.0", "remove it"),
    "past_index": ("5.0", "remove it"),
    "per_gpu_eval_batch_size": ("5.0", "use `--per_device_eval_batch_size`"),
    "per_gpu_train_batch_size": ("5.0", "use `--per_device_train_batch_size`"),
    "push_to_hub_model_id": ("5.0", "use `--hub_model_id`"),
    "push_to_hub_organization": ("5.0", "use `--hub_model_id`"),
    "push_to_hub_token": ("5.0", "use `--hub_token`"),
    "ray_scope": ("5.0", "remove it"),
    "save_safetensors": ("5.0", "remove it: safetensors is the only format"),
    "sharded_ddp": ("4.35", "use `--fsdp`"),
    "split_batches": ("4.51", "use `--accelerator_config '{\"split_batches\": true}'`"),
    "torchdynamo": ("5.0", "use `--torch_compile_backend`"),
    "tpu_num_cores": ("5.0", "remove it"),
    "use_ipex": ("4.57", "remove it"),
    "use_mps_device": ("5.0", "remove it: MPS is detected"),
    "warmup_ratio": ("5.15", "use `--warmup_steps`, which also takes a fraction below 1"),
    "xpu_backend": ("4.32", "use `--ddp_backend`"),
}
"""Argument → the first release without it, and what to type instead."""

ADDED: Mapping[str, tuple[str, str]] = {
    "activation_checkpointing": ("5.23", "use `--gradient_checkpointing`"),
    "activation_checkpointing_kwargs": ("5.23", "use `--gradient_checkpointing_kwargs`"),
    "dataloader_in_order": ("5.15", "remove it"),
    "dataloader_multiprocessing_context": ("5.15", "remove it"),
    "ddp_static_graph": ("5.6", "remove it"),
    "enable_jit_checkpoint": ("5.0", "remove it"),
    "hub_revision": ("4.53", "remove it"),
    "liger_kernel_config": ("4.53", "remove it"),
    "project": ("4.57", "remove it"),
    "train_sampling_strategy": ("5.2", "use `--group_by_length`"),
    "trackio_space_id": ("4.57", "remove it"),
    "use_cache": ("5.0", "remove it"),
}
"""Argument → the first release with it, and what to type in an older one."""


def in_code(argument: str) -> str | None:
    """Say what to write in a script instead of an argument that its transformers lacks; None if unknown."""
    removed, added = REMOVED.get(argument), ADDED.get(argument)
    if (known := removed or added) is None:
        return None
    _, instead = known
    instead = re.sub(r"`--(\w+) (\w+)`", r'`\1="\2"`', instead)
    return re.sub(r"`--(\w+)", r"`\1", instead).replace(" '{", "='{")


def is_before(version: str | None, release: str) -> bool:
    """Whether a version is older than a release; an unknown one counts as the newest."""
    return version is not None and numbers_of(version) < numbers_of(release)


class TrainerRelease(NamedTuple):
    """The installed packages that TrainingArguments depend on; None counts as the newest."""

    transformers: str | None = None
    torch: str | None = None

    @property
    def name(self) -> str:
        """`transformers 5.24`."""
        major, minor = numbers_of(self.transformers or NEWEST)
        return f"transformers {major}.{minor}"

    @property
    def defaults(self) -> Mapping[str, Value]:
        """The arguments that affect the ds_config, with their defaults."""
        return _defaults_of(self)

    def default_of(self, name: str) -> Value:
        """Return the default of an argument, which the release may not have."""
        firsts, older = OLDER_DEFAULTS.get(name, ({}, DEFAULTS[name]))
        installed = {"transformers": self.transformers, "torch": self.torch}
        if any(is_before(installed[package], first) for package, first in firsts.items()):
            return older
        return DEFAULTS[name]

    def lacks(self, name: str) -> Finding | None:
        """Explain why it does not have an argument; None if it does, or if the Trainer never had it."""
        where = f"--{name}"
        if name in REMOVED and not is_before(self.transformers, REMOVED[name][0]):
            since, instead = REMOVED[name]
            return Finding("removed-argument", f"transformers {since} removed `{where}`", instead, where)
        if name in ADDED and is_before(self.transformers, ADDED[name][0]):
            since, instead = ADDED[name]
            message = f"`{where}` came with transformers {since}, but {self.name} is installed"
            return Finding("newer-argument", message, instead, where)
        return None

    @property
    def takes_warmup_fraction(self) -> bool:
        """Whether `warmup_steps` may be a fraction of all steps."""
        return not is_before(self.transformers, "5.0")

    @property
    def least_warmup(self) -> int:
        """The least `warmup_num_steps` that the Trainer fills in."""
        if is_before(self.transformers, "5.18"):
            return 0
        return 1


@cache
def _defaults_of(release: TrainerRelease) -> Mapping[str, Value]:
    """List them once: a search asks for them thousands of times."""
    return {name: release.default_of(name) for name in DEFAULTS if not release.lacks(name)}
