"""Errors of Typer's parser in the words of zlaunch."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from zlaunch.errors import WrongUsage
from zlaunch.job.args import ScriptArgs, flag_name
from zlaunch.job.trainer_releases import ADDED, DEFAULTS, REMOVED
from zlaunch.other_values import hint_for_value, of_llama_factory

_ABOUT_JOBS = ("train", "estimate", "plan")
_EXTRA = r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)"


def as_wrong_usage(error: Any, words: Sequence[str] = ()) -> WrongUsage:
    """Write what Typer's parser refuses as an error of zlaunch, with what to type.

    `words` are the command line.
    """
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    command, hint = "zlaunch", None
    if context is not None:
        command = context.command_path
        hint = f"see `{command} --help`"
    said = error.format_message().rstrip(".")
    name = ""
    if parameter is not None:
        name = _name(parameter)
    if hasattr(error, "possibilities"):
        elsewhere = _of_others(context, error.option_name, words)
        return no_such_option(command, error.option_name, error.possibilities, elsewhere)
    if said.startswith("Missing"):
        return WrongUsage(f"`{command}` needs {_pair(context, parameter) or name}", hint)
    if name:
        return _wrong_value(name, error.message.removeprefix("Value error, "), hint)  # as pydantic begins
    if (extra := re.search(_EXTRA, said)) is not None:
        return WrongUsage(f"`{command}` takes no further argument: {extra[1]}", hint)
    if (flag := getattr(error, "option_name", None)) and said.endswith("requires an argument"):
        return _without_value(context, flag, hint)
    return WrongUsage(said[:1].lower() + said[1:], hint)


def no_such_option(
    command: str, name: str, meant: Sequence[str] | None, elsewhere: str | None = None, besides: str = ""
) -> WrongUsage:
    """Report an unknown option, with where else it belongs, or a similar one if there is any."""
    hint = elsewhere or besides or f"see `{command} --help`"
    if meant and elsewhere is None:
        hint = f"did you mean `{meant[0]}`?"
        if besides:
            hint += f" {besides[0].upper()}{besides[1:]}"
    return WrongUsage(f"{command} has no option `{name}`", hint)


def _pair(context: Any, parameter: Any) -> str | None:
    """Name the two things that a command compares; None for any other."""
    if context is None or parameter is None:
        return None
    noun = _PAIRS.get(context.command.name)
    if parameter.param_type_name != "argument" or noun is None:
        return None
    return f"2 {noun}s"


_PAIRS = {"compare": "run", "diff": "ds_config"}
"""Command that compares two arguments → what they name."""


def _without_value(context: Any, flag: str, hint: str | None) -> WrongUsage:
    """Say which value an option needs, by its help."""
    options = [] if context is None else context.command.params
    option = next((option for option in options if flag in (*option.opts, *option.secondary_opts)), None)
    if option is None:
        return WrongUsage(f"`{flag}` needs a value", hint)
    message = f"`{flag}` needs a value"
    if option.metavar:
        message += f": {option.metavar}"
    elif choices := re.search(r"[\[<](\S+\|\S+)[\]>]", (option.get_help_record(context) or ("",))[0]):
        message += f": {expected(choices[1].split('|'), '')}"
    return WrongUsage(message, option.help or hint)


def of_other_programs(context: Any, name: str, words: Sequence[str] = ()) -> str | None:
    """Say what to type here for an option of another program, of zlaunch itself, or slang; None for others.

    `words` are the command line.
    """
    from zlaunch.config.translate.other_options import (  # only for a wrong option
        LORA_RANKS,
        of_adapters,
        other_option,
        trainer_argument,
    )

    if its := _of_zlaunch(context, name):
        return its
    if (argument := trainer_argument(name)) is not None:
        return f"arguments of the script go after `--`: `{context.command_path} … -- --{argument} …`"
    value = ScriptArgs.of(words).value(flag_name(name))
    if flag_name(name) in LORA_RANKS and context.command.name == "train":
        return of_adapters(words, value)
    if its := of_llama_factory(flag_name(name), value):
        return its
    other = other_option(name, value)
    if other is not None and other.option is None:
        return f"leave it out: {other.why}"
    if other is None or not _has_option(context.command, str(other.option).split()[0]):
        return None
    return f"did you mean `{other.option}`?"


def _of_zlaunch(context: Any, name: str) -> str | None:
    root = context.find_root()
    if context is root or not _has_option(root.command, name):
        return None
    return f"it is an option of {root.command_path} itself: `{root.command_path} {name}`"


def _has_option(command: Any, name: str) -> bool:
    return any(name in (*option.opts, *option.secondary_opts) for option in command.params)


def _of_others(context: Any, name: str, words: Sequence[str]) -> str | None:
    """Say whose option it is: of another command about jobs, of zlaunch itself, or of scripts."""
    if context.command.name not in _ABOUT_JOBS:
        return _of_zlaunch(context, name)
    argument = name.lstrip("-").replace("-", "_")
    if argument in {*DEFAULTS, *ADDED, *REMOVED}:
        return f"arguments of the script go after `--`: `{context.command_path} … -- --{argument} …`"
    if meant := of_other_programs(context, name, words):
        return meant
    root = context.find_root()
    jobs = (job for job in _ABOUT_JOBS if _has_option(root.command.commands[job].load(), name))
    takers = [f"`{root.command_path} {job}`" for job in jobs]
    if not takers:
        return None
    return f"it is an option of {' and '.join(takers)}"


def _name(parameter: Any) -> str:
    longest = str(max(parameter.opts, key=len))
    if longest.startswith("-"):
        return longest
    return str(parameter.metavar or longest.upper()).partition(" ")[0].strip("[]")


def _wrong_value(name: str, said: str, hint: str | None) -> WrongUsage:
    choices, value = choices_in(said), said.partition("'")[2].partition("'")[0]
    if not choices and not said.startswith("Input should be "):
        return WrongUsage(f"`{name}`: {said}", hint)
    if choices:
        if its := of_llama_factory(flag_name(name), value):
            hint = its
        elif meant := hint_for_value(name.lstrip("-"), value, choices):
            hint = meant
        elif close := get_close_matches(value, choices, 1):
            hint = f"did you mean `{close[0]}`?"
        name = f"{name} {value}"
    return WrongUsage(f"`{name}`: expected {expected(choices, said)}", hint)


def choices_in(message: str) -> list[str]:
    """List the words that an option takes, from what the parser says about another one."""
    _, is_choice, words = message.partition(" is not one of ")
    if not is_choice:
        return []
    return [word.strip(" '.") for word in words.split(",")]


_NUMBERS = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}


def expected(choices: Sequence[str], message: str) -> str:
    """Say which values an option takes."""
    if choices:
        return f"{', '.join(choices[:-1])} or {choices[-1]}"
    words = message.removeprefix("Input should be ").partition(", unable")[0]
    for said, plain in _NUMBERS.items():
        words = words.replace(said, plain)
    return words
