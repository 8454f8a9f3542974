"""The programs that start ranks, against the installed packages."""

import importlib.metadata
import os

from zlaunch.config.translate.programs import LAUNCHERS, PROGRAMS, replacement
from zlaunch.job.module_files import find_module


def test_every_training_command_of_trl_has_its_module() -> None:
    from trl.cli.commands import get_commands
    from trl.cli.commands.training import TrainingCommand

    commands = {one.name for one in get_commands() if isinstance(one, TrainingCommand)}
    assert PROGRAMS["trl.cli"].modules.keys() == commands
    for module in PROGRAMS["trl.cli"].modules.values():
        assert '__name__ == "__main__"' in find_module(module, os.environ).read_text()


def test_the_entry_points_of_the_installed_packages_are_known() -> None:
    programs = {one.name: one.module for one in importlib.metadata.entry_points(group="console_scripts")}
    assert programs["trl"] in PROGRAMS
    assert {programs[name] for name in ("torchrun", "accelerate", "accelerate-launch")} <= LAUNCHERS.keys()


def test_trl_is_replaced_by_the_module_that_it_starts() -> None:
    found = replacement((), ["trl", "sft", "--model", "m"])
    assert found is not None
    assert found.line == "zlaunch train -m trl.scripts.sft -- --model m"
