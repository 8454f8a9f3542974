"""Checks that a script understands its arguments."""

import ast
import difflib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from zlaunch.errors import InputMissing, WrongUsage
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface, Script
from zlaunch.job.trainer_releases import DEFAULTS

OWN = (
    *("stage", "offload", "nvme", "precision", "gpus", "launcher", "hostfile", "include", "exclude"),
    *("ds_config", "dry_run", "run_dir", "rehearse", "show_ranks", "on_stall", "stall_after"),
    *("max_restarts", "on_oom", "on_nan", "resume"),
)
"""Options of zlaunch that are often misspelled, and then passed to the script."""


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
    if not (args.flags and script.is_sure and has_parser):
        return
    values = {flag.name: flag.value for flag in args.flags}
    for name in _unknown_names(_without_docstring(script), args):
        whole = [known for known in DEFAULTS if _is_short_for(name, known)]
        if whole and script.interface is ConfigInterface.TRAINER:  # other programs tell their own values
            raise WrongUsage(
                f"`--{name}` is an abbreviation of `--{whole[0]}`",
                "write the full name: zlaunch does not read abbreviations",
            )
        if name in DEFAULTS:
            continue
        from zlaunch.launch.argument_hints import hint_in_script  # only for an unknown argument

        if (hint := hint_in_script(script, name, values.get(name))) is not None:
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
