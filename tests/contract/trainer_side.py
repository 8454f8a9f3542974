"""How the Trainer reads its arguments and fills in a ds_config, without a model and without ranks."""

import copy
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

NEEDED = ("--output_dir", "out")
"""What every release of the Trainer can do with."""

SIZE_KEY = "stage3_param_persistence_threshold"


@dataclass(frozen=True)
class Filled:
    """A ds_config after the Trainer was through with it, and the keys that it refused."""

    config: dict[str, Any]
    mismatched: set[str]


def all_auto(stage: int) -> dict[str, Any]:
    """Write "auto" wherever the Trainer fills something in."""
    at_stage_3 = ("stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    warmup = ("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "optimizer": {
            "type": "AdamW",
            "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto"),
        },
        "scheduler": {"type": "WarmupDecayLR", "params": dict.fromkeys(warmup, "auto")},
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": "auto",
            **(dict.fromkeys(at_stage_3, "auto") if stage == 3 else {}),
        },
    }


@functools.cache
def parser() -> Any:
    from transformers import HfArgumentParser, TrainingArguments

    return HfArgumentParser(TrainingArguments)


@functools.cache
def training_arguments(argv: Sequence[str]) -> Any:
    (args,) = parser().parse_args_into_dataclasses([*argv, *NEEDED, "--use_cpu"], look_for_args_file=False)
    return args


def trainer_fills(
    config: dict[str, Any],
    argv: Sequence[str],
    *,
    world_size: int = 1,
    steps: int = 100,
    model_config: Any = None,
) -> Filled:
    """Run both phases of the Trainer over a ds_config; `steps` is what the dataset would give."""
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    args = training_arguments(tuple(argv))
    theirs = HfTrainerDeepSpeedConfig(copy.deepcopy(config))
    model = SimpleNamespace(config=model_config or SimpleNamespace(hidden_size=256))
    with mock.patch.object(TrainingArguments, "world_size", world_size):
        theirs.trainer_config_process(args)
        try:
            theirs.trainer_config_finalize(args, model, args.max_steps if args.max_steps > 0 else steps)
        except ValueError:
            if not theirs.mismatches:
                raise
    keys = {match.group(1) for line in theirs.mismatches if (match := re.match(r"- ds ([\w.]+)=", line))}
    return Filled(theirs.config, keys)


def formats_of_the_trainer(config: dict[str, Any], argv: Sequence[str]) -> set[str] | None:
    """Turn formats on as TrainingArguments, accelerate and DeepSpeed do; None where one of them refuses."""
    from accelerate.utils import DeepSpeedPlugin
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    try:
        args = training_arguments(tuple(argv))
        theirs = HfTrainerDeepSpeedConfig(copy.deepcopy(config))
        theirs.trainer_config_process(args)
        trained = [name for name in ("fp16", "bf16") if getattr(args, name)]
        DeepSpeedPlugin(hf_ds_config=theirs).set_mixed_precision(next(iter(trained), "no"))
    except ValueError:
        return None
    on = {name for name in ("fp16", "bf16") if theirs.config[name].get("enabled", False)}
    differ = any("16.enabled=" in line for line in theirs.mismatches)
    if differ or len(on) > 1:  # DeepSpeed asserts that only one of them is on
        return None
    return on


def width_the_trainer_takes(model_config: Any) -> int | None:
    """Ask the Trainer which width it takes from a model; it writes ten times that number."""
    config = {"zero_optimization": {"stage": 3, SIZE_KEY: "auto"}}
    try:
        filled = trainer_fills(config, (), model_config=model_config)
    except ValueError:
        return None
    return int(filled.config["zero_optimization"][SIZE_KEY]) // 10
