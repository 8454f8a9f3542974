"""The tables of other launchers' flags, and how command lines are read, against the launchers themselves."""

import argparse
import contextlib
import functools
import importlib
import io
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import chain
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.each import each
from zlaunch.config.translate.command import MODULES, PROGRAMS, read_command
from zlaunch.config.translate.flags import HELP, Command, Flag, LauncherSyntax, Role
from zlaunch.config.translate.launchers import ACCELERATE, DEEPSPEED, OLD_TORCHRUN, TORCHRUN, syntax_of
from zlaunch.errors import WrongUsage
from zlaunch.job.trainer_releases import is_before


def caught_parser(parse: Callable[[], object]) -> argparse.ArgumentParser:
    """Find the parser that a function makes and keeps to itself."""
    found: list[argparse.ArgumentParser] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", lambda self, *_, **__: found.append(self))
        parse()
    return found[0]


NEWER = {"log_line_prefix_template": "2.14", "print_completion": "2.14"}
"""Flag of torchrun → the release of torch that added it, if that is newer than the one in `constraints.txt`."""


def installed(name: str) -> LauncherSyntax:
    """A launcher without the flags that came after the installed torch."""
    syntax, torch = syntax_of(name), version("torch")
    flags = (flag for flag in syntax.flags if not is_before(torch, NEWER.get(flag.key, torch)))
    return replace(syntax, flags=tuple(flags))


LAUNCHERS: Mapping[str, LauncherSyntax] = {
    name: installed(name) for name in (DEEPSPEED, TORCHRUN, OLD_TORCHRUN, ACCELERATE)
}


@functools.cache
def parser_of(name: str) -> argparse.ArgumentParser:
    from accelerate.commands.launch import launch_command_parser
    from deepspeed.launcher import runner
    from torch.distributed import launch
    from torch.distributed.run import get_args_parser

    makers: Mapping[str, Callable[[], Any]] = {
        "deepspeed": lambda: caught_parser(runner.parse_args),
        "torchrun": get_args_parser,
        "torch.distributed.launch": lambda: caught_parser(lambda: launch.parse_args([])),
        "accelerate launch": launch_command_parser,
    }
    parser: argparse.ArgumentParser = makers[name]()
    return parser


WORDS: Mapping[str, Sequence[str]] = {
    "deepspeed": ["deepspeed"],
    "torchrun": ["torchrun"],
    "torch.distributed.launch": ["python", "-m", "torch.distributed.launch"],
    "accelerate launch": ["accelerate", "launch"],
}
NOT_FROM_VARIABLES = {"logs_specs", "numa_binding", "print_completion"}
FLAGS = [(name, one) for name, launcher in LAUNCHERS.items() for one in (*launcher.flags, HELP)]


def action(name: str, one: Flag) -> argparse.Action:
    return parser_of(name)._option_string_actions[one.names[-1]]


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_flags_are_those_of_the_launcher(name: str) -> None:
    launcher, parser = LAUNCHERS[name], parser_of(name)
    assert {*launcher.spellings()} == {*parser._option_string_actions}


@each(("name", "one"), FLAGS, ids=[f"{name} {one.key}" for name, one in FLAGS])
def test_all_spellings_of_a_flag_mean_the_same(name: str, one: Flag) -> None:
    launcher, parser = LAUNCHERS[name], parser_of(name)
    spellings = [spelling for spelling, other in launcher.spellings().items() if other == one]
    assert {parser._option_string_actions[spelling] for spelling in spellings} == {action(name, one)}


@each(("name", "one"), FLAGS, ids=[f"{name} {one.key}" for name, one in FLAGS])
def test_a_value_follows_where_the_launcher_wants_one(name: str, one: Flag) -> None:
    assert one.takes_value == (action(name, one).nargs is None)


@each(("name", "one"), FLAGS, ids=[f"{name} {one.key}" for name, one in FLAGS])
def test_an_idle_value_is_the_launchers_own(name: str, one: Flag) -> None:
    default = action(name, one).default
    if one.idle and default is not None:
        assert str(default).lower() in one.idle


def test_torchruns_variables_are_those_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.run import get_args_parser

    for one in LAUNCHERS[TORCHRUN].flags:
        monkeypatch.setenv(
            f"{LAUNCHERS[TORCHRUN].variables}{one.key.upper()}", "7" if one.takes_value else "1"
        )
    parser = get_args_parser()
    read = {one.key for one in LAUNCHERS[TORCHRUN].flags if parser.get_default(one.key) in ("7", True)}
    assert read == {one.key for one in LAUNCHERS[TORCHRUN].flags} - NOT_FROM_VARIABLES


def test_torchrun_starts_as_many_ranks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.run import get_args_parser

    assert get_args_parser().get_default("nproc_per_node") == LAUNCHERS[TORCHRUN].ranks


def test_deepspeed_looks_for_the_same_hostfile() -> None:
    from deepspeed.launcher import runner

    assert LAUNCHERS[DEEPSPEED].hostfile == runner.DLTS_HOSTFILE


@pytest.mark.parametrize("module", MODULES)
def test_a_module_that_starts_a_launcher_is_there(module: str) -> None:
    assert hasattr(importlib.import_module(module.partition(" ")[0]), "main")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_starts_a_launcher_is_there(program: str) -> None:
    import sysconfig
    from pathlib import Path

    assert (Path(sysconfig.get_path("scripts")) / program.partition(" ")[0]).exists()


SCRIPT_WORDS = st.sampled_from(
    [
        "--lr",
        "1e-4",
        "--",
        "-x",
        "--num_gpus",
        "2",
        "--nproc_per_node=2",
        "-m",
        "a b",
        "",
        "--use_deepspeed",
        "-1",
    ]
)


def value_of(name: str, one: Flag) -> st.SearchStrategy[str]:
    choices = action(name, one).choices
    if choices:
        return st.sampled_from(sorted(map(str, choices)))
    return st.sampled_from(
        ["1", "0", "17"] if action(name, one).type else ["1", "a b", "x=y", "-1", "", "-", "-x y"]
    )


def flag_words(name: str) -> st.SearchStrategy[list[str]]:
    launcher = LAUNCHERS[name]
    known = {spelling: one for spelling, one in launcher.spellings().items() if one != HELP}

    def spoken(spelling: str) -> st.SearchStrategy[list[str]]:
        one = known[spelling]
        if not one.takes_value:
            return st.just([spelling])
        value = value_of(name, one)
        apart = value.map(lambda text: [spelling, text])
        joined = value.map(lambda text: [f"{spelling}={text}"])
        glued = value.filter(lambda text: text[:1] not in ("", "=")).map(lambda text: [f"{spelling}{text}"])
        return apart | joined | glued if not spelling.startswith("--") else apart | joined

    words = st.sampled_from(sorted(known)).flatmap(spoken)
    return st.lists(words, max_size=5).map(lambda found: [*chain.from_iterable(found)])


def command_lines() -> st.SearchStrategy[tuple[str, list[str]]]:
    script = st.sampled_from([["t.py"], ["--", "t.py"], ["my script.py"]])
    return st.sampled_from(sorted(LAUNCHERS)).flatmap(
        lambda name: st.tuples(
            st.just(name),
            st.tuples(flag_words(name), script, st.lists(SCRIPT_WORDS, max_size=5)).map(
                lambda parts: [*chain.from_iterable(parts)]
            ),
        )
    )


def really(name: str, words: list[str]) -> Any:
    """Ask the launcher's own parser; None if it refuses."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        return parser_of(name).parse_args(words)
    return None


def ours(name: str, words: list[str]) -> Command | None:
    with contextlib.suppress(WrongUsage):
        return read_command([*WORDS[name], *words])
    return None


@given(command_lines())
@example(("torchrun", ["t.py", "--", "x"]))
@example(("torchrun", ["--", "t.py", "--", "x"]))
@example(("torchrun", ["t.py", "x", "--", "y"]))
@example(("torchrun", ["t.py", "--", "--", "x"]))
@example(("torchrun", ["-mt3", "t.py"]))
@example(("deepspeed", ["-qHhosts", "t.py"]))
@example(("deepspeed", ["--num_g", "2", "t.py", "--num_g", "3"]))
@example(("deepspeed", ["--launcher_args", "--mca x", "t.py"]))
@example(("accelerate launch", ["--zero-stage=3", "t.py"]))
def test_the_script_and_its_arguments_are_those_that_the_launcher_finds(case: tuple[str, list[str]]) -> None:
    name, words = case
    real, found = really(name, words), ours(name, words)
    script = None if real is None else getattr(real, "user_script", getattr(real, "training_script", None))
    args = () if real is None else getattr(real, "user_args", getattr(real, "training_script_args", ()))
    understood = (None, ()) if found is None else (found.script, found.args.words)
    assert understood == (script, tuple(args))


@given(command_lines())
def test_a_value_is_the_one_that_the_launcher_finds(case: tuple[str, list[str]]) -> None:
    name, words = case
    real, found = really(name, words), ours(name, words)
    for given_flag in () if real is None or found is None else found.roles().values():
        one = given_flag.flag
        if one.takes_value and one.becomes is not Role.CONFIG_FILE:
            dest = action(name, one).dest
            assert str(getattr(real, dest)) == given_flag.value


@pytest.mark.parametrize(
    "line",
    [
        "deepspeed --num-gpus 2 t.py",
        "deepspeed --xyz t.py",
        "deepspeed --num_gpus t.py",
        "deepspeed --num_ 2 t.py",
        "deepspeed --no_ssh=1 t.py",
        "deepspeed --num_gpus 2",
        "torchrun --num_gpus 2 t.py",
        "torchrun --nnodes --standalone t.py",
        "torchrun --nnodes -- t.py",
        "accelerate-launch --num_proc 2 t.py",
        "accelerate-launch --zero_stag 2 t.py",
    ],
)
def test_what_is_refused_is_what_the_launcher_refuses(line: str) -> None:
    program, *words = shlex.split(line)
    name = PROGRAMS[program]
    found = ours(name, words)
    assert (really(name, words), found and found.script) == (None, None)
