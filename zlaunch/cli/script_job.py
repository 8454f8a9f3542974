"""The job of a command about a training script that is run, but not started: estimated, or checked."""

from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

from zlaunch.cli.job_command import typed_args
from zlaunch.cli.job_options import ConfigOptions
from zlaunch.cli.option_table import read
from zlaunch.errors import WrongUsage
from zlaunch.estimate.changes import TRAINING, Options
from zlaunch.hosts.machine.interpreter import find_module_in
from zlaunch.job.args import ds_config_of
from zlaunch.job.model import SEQ_LEN_FLAGS
from zlaunch.job.recipes import recipe_named
from zlaunch.job.script import Script, setting_of
from zlaunch.job.script_reader import read_script
from zlaunch.job.spec import JobSpec, script_path

_OF_MODELS: Final = (*TRAINING, "optimizer", "freeze", "trust_remote_code")
"""Options that describe a training, which a script decides itself."""


def read_named_script(script: str | None, given: Mapping[str, Any]) -> Script:
    """Read a script, or the module that is given; raise WrongUsage for options about a model."""
    if script is None:
        path = find_module_in(given["python"], given["module"])
    else:
        path = recipe_named(script) or script_path(script)
    source = read_script(path)
    if wrong := [name for name in _OF_MODELS if given.get(name)]:
        raise _belongs_to_script({name: given[name] for name in wrong}, source)
    return source


def _belongs_to_script(wrong: Mapping[str, Any], script: Script) -> WrongUsage:
    hints: dict[str, list[str]] = {}
    for name, value in wrong.items():
        hints.setdefault(_instead(name, value, script), []).append(f"`--{name.replace('_', '-')}`")
    options = ", ".join(chain.from_iterable(hints.values()))
    hint = "; ".join(f"for {', '.join(names)}, {instead}" for instead, names in hints.items())
    message = f"{options}: for the training of a model; {script.path.name} decides itself how it trains"
    return WrongUsage(message, hint)


def _instead(name: str, value: Any, script: Script) -> str:
    """Say how a script is told the same."""
    setting = setting_of(script.interface, script.handover)
    if name in TRAINING and (words := Options(**{name: value}).for_train(setting)):
        if name == "micro_batch" and setting == "key":
            return f"write `{words}`, and feed batches of this size in the script"
        return f"write `{words}`"
    arguments = {"seq_len": SEQ_LEN_FLAGS, "attention": ("attn_implementation",)}.get(name, ())
    if name == "optimizer" and setting == "argument":
        arguments = ("optim",)
    elif script.has_other_modules:
        arguments = ()  # which may define any
    else:
        arguments = tuple(argument for argument in arguments if script.may_define(f"--{argument}"))
    if arguments:
        return f"write `-- --{arguments[0]} {value}`"
    return "change the script, or give its own argument for it after `--`"


def job_of(context: Any, script: Script, given: Mapping[str, Any]) -> JobSpec:
    """Read the options of the job."""
    typed = typed_args(context)
    args, ds_config = ds_config_of(typed, given["ds_config"], script.switches)
    config_flags: tuple[str, ...] = ()
    if args != typed:  # it named a ds_config
        config_flags = typed.config_flags
    return JobSpec(
        script=script.path,
        args=args,
        ds_config=ds_config,
        python=given["python"],
        module=given["module"],
        config_flags=config_flags,
        **read(ConfigOptions, given).job_members,
    )
