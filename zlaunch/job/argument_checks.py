"""Checks that a script understands its arguments."""

import difflib
from collections.abc import Iterable, Mapping

from zlaunch.errors import InputMissing, WrongUsage
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface, Script
from zlaunch.job.trainer_releases import DEFAULTS

INSTEAD: Mapping[str, str] = {
    "num_gpus": "--gpus N",
    "num_accelerators": "--gpus N",
    "nproc_per_node": "--gpus N",
    "num_processes": "--gpus N",
    "gpu_ids": "--gpus 0,1",
    "include": "--include HOST:0,1",
    "exclude": "--exclude HOST:0",
    "hostfile": "--hostfile FILE",
    "deepspeed_hostfile": "--hostfile FILE",
    "launcher": "--launcher torchrun",
    "zero_stage": "--stage 3",
    "stage": "--stage 3",
    "offload": "--offload cpu",
    "nvme": "--nvme DIR",
    "offload_optimizer_device": "--offload cpu",
    "offload_param_device": "--offload cpu",
    "use_deepspeed": "--stage 2",
    "ds_config": "--ds-config FILE",
    "deepspeed_config_file": "--ds-config FILE",
    "mixed_precision": "--precision bf16",
    "dry_run": "--dry-run",
    "run_dir": "--run-dir DIR",
    "standalone": "",
    "master_port": "",
    "main_process_port": "",
    "nnodes": "--hostfile FILE",
    "num_nodes": "--hostfile FILE",
    "num_machines": "--hostfile FILE",
}
"""Flags of deepspeed, torchrun, accelerate and zlaunch → what to type; empty if nothing is needed."""

OWN = (
    *("stage", "offload", "nvme", "precision", "gpus", "launcher", "hostfile", "include", "exclude"),
    *("ds_config", "dry_run", "run_dir", "rehearse", "show_ranks", "on_stall", "stall_after"),
    *("max_restarts", "on_oom", "on_nan", "resume"),
)
"""Options of zlaunch that are often misspelled, and then passed to the script."""

OF_THE_TRAINER: Mapping[str, str] = {
    "micro_batch": "--per_device_train_batch_size",
    "grad_accum": "--gradient_accumulation_steps",
}
"""Options of `estimate` and `plan` → Trainer arguments."""


def check_script_args(script: Script, args: ScriptArgs) -> None:
    """Raise WrongUsage for a launcher flag that the script certainly does not define.

    Raise InputMissing if the Trainer would read a ds_config that does not exist.
    Only scripts that contain a parser are checked, and know all of its arguments: others may read their flags
    anywhere, and reject them when they are asked.
    """
    named = [flag.value for flag in args.flags if flag.name == "deepspeed" and flag.value is not None]
    if named and script.takes_trainer_args:
        raise InputMissing(f"cannot read the ds_config `{named[0]}`: No such file or directory")
    names = (flag.name for flag in args.flags)
    unknown = [name for name in names if not (script.mentions(name) or script.may_define(f"--{name}"))]
    has_parser = any(map(script.mentions, ("ArgumentParser", "HfArgumentParser", "TrlParser")))
    if has_parser or not script.mentions("argv"):
        _refuse_misspelled(script, unknown)
    if not (script.is_sure and has_parser):
        return
    for name in unknown:
        whole = [known for known in DEFAULTS if _is_short_for(name, known)]
        if whole and script.interface is ConfigInterface.TRAINER:  # other programs tell their own values
            raise WrongUsage(
                f"`--{name}` is an abbreviation of `--{whole[0]}`",
                "write the full name: zlaunch does not read abbreviations",
            )
        if name in OF_THE_TRAINER:
            raise WrongUsage(
                f"`--{name.replace('_', '-')}` is an option of `zlaunch estimate` and `plan`",
                f"Trainer scripts use `{OF_THE_TRAINER[name]}`",
            )
        if name in INSTEAD:
            raise WrongUsage(
                f"unrecognized argument `--{name}`: {script.path.name} does not define it",
                f"put `{INSTEAD[name]}` before the script" if INSTEAD[name] else "remove it",
            )


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
