"""The help of `zlaunch train`, and the tables that it is made from."""

import re
import subprocess
import sys
from dataclasses import fields
from typing import get_args

from tests.running import ROOT
from zlaunch.cli.train_options import MOST_USED, panels
from zlaunch.hosts.cluster.placement import DEFAULT_CPU_RANKS
from zlaunch.job.spec import JobSpec, PreemptOptions, RestartPolicy, RunOptions

HELP = """
import sys
from zlaunch.cli import main
sys.argv = ["zlaunch", "train", "--help"]
try:
    main()
except SystemExit:
    print("imported:", *sorted(sys.modules))
"""
TABLES = ("launcher", "scheduler", "backends", "schedulers")
"""What the help may import of zlaunch.launch: the tables of launchers and schedulers."""


def shown() -> tuple[str, list[str]]:
    """The help in a pipe, and the modules that it imported."""
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    argv = [sys.executable, "-c", HELP]
    out = subprocess.run(argv, env=env, capture_output=True, text=True, check=True).stdout
    text, _, modules = out.rpartition("imported:")
    return text, modules.split()


def test_a_whole_number_is_no_fraction_in_the_help() -> None:
    text, _ = shown()
    assert "[default: 600]" in text
    assert ".0]" not in text


def test_three_examples_and_the_most_used_options_come_first() -> None:
    text, _ = shown()
    assert len(re.findall(r"^ +zlaunch train ", text, re.MULTILINE)) == 3
    first = text[text.index("Examples:") : text.index("What to train:")]
    assert len(re.findall(r"^  --", first, re.MULTILINE)) == len(MOST_USED) == 10


def test_the_help_in_a_pipe_is_plain_and_has_every_option_once_in_80_columns() -> None:
    text, _ = shown()
    flags = re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE)
    frozen = re.findall(
        r"^zlaunch train (--[\w-]+)", (ROOT / "tests" / "surface.txt").read_text(), re.MULTILINE
    )
    assert sorted(flags) == sorted([*frozen, "--help"])
    assert [line for line in text.splitlines() if len(line) > 80 or "\x1b" in line] == []


def test_the_help_has_the_number_of_ranks_on_a_machine_without_a_gpu() -> None:
    text, _ = shown()
    assert f"number of ranks on the CPU (default: {DEFAULT_CPU_RANKS})" in " ".join(text.split())


def test_the_help_imports_the_tables_and_not_what_starts_a_job() -> None:
    _, modules = shown()
    launch = [name.split(".")[2] for name in modules if name.startswith("zlaunch.launch.")]
    assert {*launch} == {*TABLES}
    slow = {"typer._adapters", "pydantic", "zlaunch.cli.train_job", "zlaunch.cli.submission"}
    assert slow & {*modules} == set()


def test_an_option_has_the_type_of_the_member_that_it_sets() -> None:
    read_otherwise = {"script", "stage", "overrides", "env", "launcher"}
    wrong = {}
    options = {
        field.name: field for panel in panels() for field in fields(panel.table) if field.name in panel.names
    }
    for table in (JobSpec, RunOptions, RestartPolicy, PreemptOptions):
        for member in fields(table):
            if member.name in options and member.name not in read_otherwise:
                kind = get_args(options[member.name].type)[0]
                if kind != member.type:
                    wrong[member.name] = (kind, member.type)
    assert wrong == {}


def test_an_option_that_is_left_out_is_the_default_of_the_member_that_it_sets() -> None:
    options = {
        field.name: field for panel in panels() for field in fields(panel.table) if field.name in panel.names
    }
    for table in (RunOptions, RestartPolicy, PreemptOptions):
        for member in fields(table):
            if member.name in options:
                assert options[member.name].default == member.default, member.name
