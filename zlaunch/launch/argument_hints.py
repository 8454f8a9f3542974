"""What to type for an argument that a script does not define: names that other programs have for it."""

from collections.abc import Collection

from zlaunch.config.translate.other_options import (
    LORA_RANKS,
    USUAL_IN_SCRIPTS,
    other_option,
    trainer_argument,
)
from zlaunch.job.args import flag_name
from zlaunch.job.model import MODEL_FLAGS, SEQ_LEN_FLAGS
from zlaunch.job.script import ConfigInterface, Script
from zlaunch.other_values import of_llama_factory

_OF_ESTIMATES = {
    "per_device_train_batch_size": "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
"""What `estimate` calls `--micro-batch` and `--grad-accum`: the Trainer's argument → key of a ds_config."""

_ALIKE = (
    LORA_RANKS,
    MODEL_FLAGS,
    SEQ_LEN_FLAGS,
    (
        *("dataset", "dataset_name", "dataset_path", "data", "data_path", "data_dir"),
        *("train_file", "train_data", "train_dataset", "train_path"),
    ),
)
"""Names that scripts have for the same argument."""


def hint_in_script(script: Script, name: str, value: str | None) -> str | None:
    """Say what to type for an argument that this script certainly does not define."""
    if name in USUAL_IN_SCRIPTS:
        return None
    key = _OF_ESTIMATES.get(trainer_argument(name) or "")
    if key is not None and script.interface is not ConfigInterface.TRAINER:
        number = value if value is not None and value.isdecimal() else "N"
        return f"put `--set {key}={number}` before the script"
    return hint_for(name, _OF_ESTIMATES, value)


def hint_for(name: str, trainer_names: Collection[str], value: str | None = None) -> str | None:
    """Say what to type for an argument of another program, or slang, that a script does not define.

    `value` is the one that was typed for it.
    Of the Trainer's and the script's own arguments, only those are proposed that are given here.
    """
    name = flag_name(name)
    argument = trainer_argument(name)
    if argument in trainer_names:
        return f"did you mean `--{argument}`?"
    for alike in (alike for alike in _ALIKE if name in alike):
        if own := [known for known in alike if known in trainer_names]:
            return f"did you mean `--{own[0]}`?"
    if its := of_llama_factory(name, value):
        return its
    if (other := other_option(name, value)) is None:
        return None
    if other.option is None:
        return f"leave it out: {other.why}"
    return f"put `{other.option}` before the script"
