"""The commands and options are frozen: a change here is a change for every user, made on purpose."""

from collections.abc import Iterator
from typing import Any

from tests.running import ROOT
from zlaunch.cli import program
from zlaunch.cli.lazy import LazyCommand

FROZEN = ROOT / "tests" / "surface.txt"


def surface(command: Any, name: str) -> Iterator[str]:
    if isinstance(command, LazyCommand):
        command = command.load()
    for parameter in sorted(command.params, key=lambda parameter: str(parameter.opts)):
        yield f"{name} {' '.join(parameter.opts)}"
    for verb, child in sorted(getattr(command, "commands", {}).items()):
        yield from surface(child, f"{name} {verb}")


def test_the_commands_and_options_are_those_that_were_frozen() -> None:
    assert list(surface(program, "zlaunch")) == FROZEN.read_text().splitlines()
