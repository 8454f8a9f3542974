"""The commands of zlaunch, and whether hints name options that they have."""

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

_HINT = re.compile(r"\bhint: (.*(?:\n {8,}.*)*)")
_OPTION = re.compile(r"(?<!did you mean )`(--[a-z][a-z-]+)")
"""A similar option may be one of the script."""
_OF_SCRIPTS = {"--deepspeed"}
"""What scripts are told with the same word."""


@functools.cache
def commands() -> dict[tuple[str, ...], Any]:
    """Load every command, by the words that name it."""
    from zlaunch.cli import program

    return dict(_commands(program, ()))


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    from zlaunch.cli.lazy import LazyCommand

    if isinstance(command, LazyCommand):
        command = command.load()
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _commands(child, (*path, name))


def options_of(command: Any) -> set[str]:
    """Name the options of a command."""
    return {name for option in command.params for name in (*option.opts, *option.secondary_opts)}


def command_named(words: Sequence[str]) -> tuple[str, ...]:
    """Return the command that a command line begins with."""
    return max((path for path in commands() if tuple(words[: len(path)]) == path), key=len)


def foreign_options(words: Sequence[str], printed: str) -> set[str]:
    """Find options of zlaunch that a hint names, and that only other commands have."""
    named = {option for hint in _HINT.findall(printed) for option in _OPTION.findall(hint)}
    if not named:
        return set()
    named_command = command_named(words)
    own = options_of(commands()[named_command])
    if named_command == ("runs", "rerun"):  # it repeats `train`, and says what is wrong with its options
        own |= options_of(commands()["train",])
    others = {option for command in commands().values() for option in options_of(command)}
    return (named & others) - own - _OF_SCRIPTS
