"""Commands are listed by a table and imported when they are needed."""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
import typer

from tests.running import ROOT
from zlaunch.cli import COMMANDS, program
from zlaunch.cli.lazy import OTHER_NAMES, LazyCommand, LazyGroup
from zlaunch.errors import WrongUsage

LIST_IMPORTS = """
import sys, zlaunch.cli
for argv in {lines!r}:
    zlaunch.cli.program([*argv], prog_name="zlaunch", standalone_mode=False)
print("imported:", *(path for path in {paths!r} if path in sys.modules))
"""


def lazy_commands(commands: Sequence[Any] = COMMANDS) -> Iterator[LazyCommand]:
    for command in commands:
        if isinstance(command, LazyCommand):
            yield command
        else:
            yield from lazy_commands(list(command.commands.values()))


GROUPS: dict[str, Any] = {"": program.commands} | {
    str(command.name): command.commands for command in COMMANDS if isinstance(command, LazyGroup)
}
PATHS = sorted(command.module for command in lazy_commands())


def imported_by(*lines: Sequence[str]) -> list[str]:
    """Name the modules of commands that one process imported for all of these command lines."""
    source = LIST_IMPORTS.format(lines=lines, paths=PATHS)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert "Usage" in done.stdout
    return done.stdout.splitlines()[-1].split()[1:]


def test_the_help_line_of_a_command_is_the_first_sentence_of_its_own_help() -> None:
    lines = {command.name: command.get_short_help_str(200) for command in lazy_commands()}
    assert lines == {command.name: command.load().get_short_help_str(200) for command in lazy_commands()}


def test_no_help_line_of_a_command_is_cut_at_80_columns() -> None:
    for commands in GROUPS.values():
        room = 80 - 2 - max(map(len, commands)) - 2 - 1
        shown = {name: command.get_short_help_str(room) for name, command in commands.items()}
        assert [name for name, text in shown.items() if text.endswith("...")] == []


def test_a_list_of_commands_imports_none_of_them() -> None:
    assert imported_by(["--help"], ["config", "--help"], ["runs", "--help"]) == []


def test_the_help_of_a_command_imports_that_command_only() -> None:
    assert imported_by(["config", "schema", "--help"]) == ["zlaunch.cli.config.schema"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("zlaunch co", "config"),
        ("zlaunch runs st", "stop"),
        ("zlaunch config diff --deep", "--deepspeed"),
        ("zlaunch plan gpt2-x", "gpt2-xl"),
        ("zlaunch train caus", "causal_lm"),
        ("zlaunch train zlaunch/dsconfig/re", "zlaunch/dsconfig/read.py\nzlaunch/dsconfig/releases.py"),
        ("zlaunch recipes show own", "own_loop"),
        ("zlaunch train --launcher to", "torchrun"),
        ("zlaunch train --submit s", "slurm"),
        ("zlaunch train --kind t", "trainjob"),
    ],
)
def test_the_shell_completes_commands_and_their_options(
    words: str, answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("_ZLAUNCH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    with pytest.raises(SystemExit):
        program(prog_name="zlaunch")
    assert capsys.readouterr().out == f"{answer}\n"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("my.py", "train my.py"),
        ("trl", "config translate -- trl …"),
        ("launch", "train"),
        ("validate", "config validate"),
        ("why", "runs why"),
        ("ps", "runs list"),
        ("kill", "runs stop"),
        ("submit", "train --submit slurm"),
        ("new", "init"),
        ("list", "runs list"),
        ("run list", "runs list"),
        ("resume", "train --resume latest"),
        ("config fix", "config validate FILE --fix"),
        ("config valdate", "config validate"),
        ("checkpoint merge", "checkpoint export"),
        ("runs tail", "runs logs"),
        ("recipes run", "train RECIPE"),
    ],
)
def test_a_command_under_another_name_or_without_its_group_is_named(words: str, meant: str) -> None:
    with pytest.raises(WrongUsage) as caught:
        program([*words.split(), "train.py"], prog_name="zlaunch", standalone_mode=False)
    assert caught.value.hint == f"did you mean `zlaunch {meant}`?"


@pytest.mark.parametrize("word", ["rm", "delete", "clean"])
def test_a_run_is_deleted_by_the_shell(word: str) -> None:
    with pytest.raises(WrongUsage) as caught:
        program(["runs", word, "latest"], prog_name="zlaunch", standalone_mode=False)
    assert caught.value.hint == "delete the directory of the run: `rm -r runs/ID`"


def test_other_names_are_those_of_commands_that_exist() -> None:
    groups = json.loads(OTHER_NAMES.read_text("utf-8"))
    paths = {f"{group} {name}".strip() for group, commands in GROUPS.items() for name in commands}
    for group, names in groups.items():
        for meant, words in names.items():
            if "`" in meant:  # a command of the shell
                continue
            command = re.split(" (?=-|[A-Z])", meant)[0]
            assert command in paths
            assert not {*words.split()} & {*GROUPS[group]}


def test_a_misspelled_command_is_named() -> None:
    with pytest.raises(WrongUsage) as caught:
        program(["trian"], prog_name="zlaunch", standalone_mode=False)
    assert caught.value.hint == "did you mean `zlaunch train`?"


def test_a_word_that_is_like_no_command_is_answered_with_the_help() -> None:
    with pytest.raises(WrongUsage, match="zlaunch has no command `frobnicate`") as caught:
        program(["frobnicate"], prog_name="zlaunch", standalone_mode=False)
    assert caught.value.hint == "see `zlaunch --help`"


LEAKS = re.compile(r"<(str|path|int|float|list)|[<>]=x|x[<>]=|\[\[|[{}]|default: \(")
"""Types and bounds that the parser would write into help and usage."""


def helps(commands: Iterable[Any], path: str) -> Iterator[tuple[str, str]]:
    for command in commands:
        name = f"{path} {command.name}"
        if isinstance(command, LazyGroup):
            yield from helps(command.commands.values(), name)
        else:
            context = typer.Context(command.load(), info_name=name)
            yield name, context.command.get_help(context)


def test_no_help_shows_types_of_values_or_bounds_of_numbers() -> None:
    found = {name: LEAKS.findall(text) for name, text in helps(COMMANDS, "zlaunch")}
    assert len(found) > 30
    assert [name for name, leaks in found.items() if leaks] == []
