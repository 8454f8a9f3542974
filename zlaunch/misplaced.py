"""Launcher flags that stand after the script, where they reach the script and not the launcher."""

from collections.abc import Mapping, Sequence

from zlaunch.errors import WrongUsage
from zlaunch.script import Script
from zlaunch.trainer_args import flags

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
"""Flags of deepspeed, torchrun, accelerate and zlaunch → what to type; empty where nothing is needed."""


def refuse_misplaced(script: Script, argv: Sequence[str]) -> None:
    """Raise WrongUsage for a launcher flag that the script would not understand.

    Only scripts whose own parser is in sight are judged; others may read their flags anywhere.
    """
    if not any(script.mentions(parser) for parser in ("ArgumentParser", "HfArgumentParser", "TrlParser")):
        return
    for name, _ in flags(argv):
        if name in INSTEAD and not script.mentions(name):
            advice = f"put `{INSTEAD[name]}` before the script" if INSTEAD[name] else "leave it out: zlaunch sees to it"
            raise WrongUsage(
                f"`--{name}` stands where the script's own arguments stand, and {script.path.name} does not know it",
                advice,
            )
