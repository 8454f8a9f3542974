"""Where a training saves: the arguments by which a program is told."""

from collections.abc import Sequence
from pathlib import Path

from zlaunch.errors import WrongUsage
from zlaunch.job.script_reader import read_script
from zlaunch.job.trainer_args import flags
from zlaunch.launch.facts import default_recipe

OUTPUT = "--output_dir"

_OF_THE_RECIPE = ("--save_strategy", "epoch", "--save_total_limit", "2")
"""The recipe saves nothing by default; a checkpoint has seven times the bytes of the model."""


def saving(directory: str, program: Path, argv: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments by which a program saves to a directory; those of the user come after them.

    Raise WrongUsage if the program is not known to take any, or the user named another directory.
    """
    if (given := dict(flags(argv)).get("output_dir")) is not None:
        raise WrongUsage(
            f"`--save {directory}` and `{OUTPUT} {given}` both name a directory", "keep one of them"
        )
    if program == default_recipe():
        return (OUTPUT, directory, *_OF_THE_RECIPE)
    script = read_script(program)
    if script.save_flag:
        return (script.save_flag, directory)
    if script.takes_trainer_args:
        return (OUTPUT, directory)
    raise WrongUsage(
        f"`--save {directory}`: {program.name} decides itself where it saves",
        "pass the argument that it has for this after `--`",
    )
