"""How the Trainer reads its arguments and fills in a ds_config, without a model and without ranks."""

import copy
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

from transformers import HfArgumentParser, TrainingArguments
from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

PARSER = HfArgumentParser(TrainingArguments)
SIZE_KEY = "stage3_param_persistence_threshold"


@dataclass(frozen=True)
class Filled:
    """A ds_config after the Trainer was through with it, and the keys that it refused."""

    config: dict[str, Any]
    mismatched: set[str]


@functools.cache
def training_arguments(argv: Sequence[str]) -> Any:
    (args,) = PARSER.parse_args_into_dataclasses([*argv, "--use_cpu"], look_for_args_file=False)
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


def width_the_trainer_takes(model_config: Any) -> int | None:
    """Ask the Trainer which width it takes from a model; it writes ten times that number."""
    config = {"zero_optimization": {"stage": 3, SIZE_KEY: "auto"}}
    try:
        filled = trainer_fills(config, (), model_config=model_config)
    except ValueError:
        return None
    return int(filled.config["zero_optimization"][SIZE_KEY]) // 10
