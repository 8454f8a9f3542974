"""Checks that a script understands its arguments."""

import ast
import difflib
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace

from zlaunch.config.translate.other_options import (
    LORA_RANKS,
    USUAL_IN_SCRIPTS,
    other_option,
    trainer_argument,
)
from zlaunch.errors import InputMissing, WrongUsage
from zlaunch.job.args import ScriptArgs, flag_name
from zlaunch.job.model import MODEL_FLAGS, SEQ_LEN_FLAGS
from zlaunch.job.script import ConfigInterface, Script
from zlaunch.job.trainer_releases import DEFAULTS
from zlaunch.other_values import of_llama_factory

OWN = (
    *("stage", "offload", "nvme", "precision", "gpus", "launcher", "hostfile", "include", "exclude"),
    *("ds_config", "dry_run", "run_dir", "rehearse", "show_ranks", "on_stall", "stall_after"),
    *("max_restarts", "on_oom", "on_nan", "resume"),
)
"""Options of zlaunch that are often misspelled, and then passed to the script."""
_OF_ESTIMATES = {
    "per_device_train_batch_size": "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
"""What `estimate` calls `--micro-batch` and `--grad-accum`: the Trainer's argument → key of a ds_config."""


def check_script_args(script: Script, args: ScriptArgs) -> None:
    """Raise WrongUsage for a launcher flag that the script certainly does not define.

    Raise InputMissing if the Trainer would read a ds_config that does not exist.
    Only scripts that contain a parser are checked, and know all of its arguments: others may read their flags
    anywhere, and reject them when they are asked.
    """
    named = [flag.value for flag in args.flags if flag.name == "deepspeed" and flag.value is not None]
    if named and script.takes_trainer_args:
        raise InputMissing(f"cannot read the ds_config `{named[0]}`: No such file or directory")
    unknown = _unknown_names(script, args)
    has_parser = any(map(script.mentions, ("ArgumentParser", "HfArgumentParser", "TrlParser")))
    if has_parser or not script.mentions("argv"):
        _refuse_misspelled(script, unknown)
    if not (script.is_sure and has_parser):
        return
    values = {flag.name: flag.value for flag in args.flags}
    for name in _unknown_names(_without_docstring(script), args):
        whole = [known for known in DEFAULTS if _is_short_for(name, known)]
        if whole and script.interface is ConfigInterface.TRAINER:  # other programs tell their own values
            raise WrongUsage(
                f"`--{name}` is an abbreviation of `--{whole[0]}`",
                "write the full name: zlaunch does not read abbreviations",
            )
        if name in {*DEFAULTS, *USUAL_IN_SCRIPTS}:
            continue
        if (hint := _hint_for(script, name, values.get(name))) is not None:
            message = f"unrecognized argument `--{name}`: {script.path.name} does not define it"
            raise WrongUsage(message, hint)


def _unknown_names(script: Script, args: ScriptArgs) -> list[str]:
    names = (flag.name for flag in args.flags)
    return [name for name in names if not (script.mentions(name) or script.may_define(f"--{name}"))]


def _without_docstring(script: Script) -> Script:
    """Leave out the text in which a script shows commands, such as those of launchers."""
    docstring = None
    with suppress(SyntaxError):
        docstring = ast.get_docstring(ast.parse(script.source), clean=False)
    if docstring is None:
        return script
    return replace(script, source=script.source.replace(docstring, "", 1))


def _hint_for(script: Script, name: str, value: str | None) -> str | None:
    key = _OF_ESTIMATES.get(trainer_argument(name) or "")
    if key is not None and script.interface is not ConfigInterface.TRAINER:
        number = value if value is not None and value.isdecimal() else "N"
        return f"put `--set {key}={number}` before the script"
    return hint_for(name, _OF_ESTIMATES, value)


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


def _refuse_misspelled(script: Script, names: Iterable[str]) -> None:
    """Raise WrongUsage for a misspelled option of zlaunch, which the script does not define either."""
    for name in (name for name in names if name not in OWN and name not in DEFAULTS):
        if meant := difflib.get_close_matches(name, OWN, 1, 0.8):
            raise WrongUsage(
                f"unrecognized argument `--{name}`: neither zlaunch nor {script.path.name} defines it",
                f"did you mean `--{meant[0].replace('_', '-')}`?",
            )


def _is_short_for(name: str, known: str) -> bool:
    """Whether argparse would accept it as an abbreviation; at least four letters, to avoid accidents."""
    return known.startswith(name) and name not in DEFAULTS and len(name) >= 4
