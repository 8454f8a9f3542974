"""`--save`: the arguments by which a script is told where to save."""

from dataclasses import replace
from pathlib import Path

from zlaunch.errors import WrongUsage
from zlaunch.job.recipes import recipe_of
from zlaunch.job.script import Script
from zlaunch.job.spec import JobSpec
from zlaunch.launch.rundir_writer import check_writable

OUTPUT = "--output_dir"

_OF_A_RECIPE = ("--save_strategy", "epoch", "--save_total_limit", "2")
"""By default, recipes save the model alone; a checkpoint has seven times its bytes."""


def told_where_to_save(job: JobSpec, script: Script) -> JobSpec:
    """Add the arguments for `--save` to those of a script; those of the user come after them.

    Raise WrongUsage if the script is not known to take any, or the user named another directory, Unavailable
    if the directory cannot be written.
    """
    if job.save is None:
        return job
    words = _words(job.save, job, script)
    if words[0] == OUTPUT:  # what a script does with an argument of its own is unknown
        check_writable(Path(job.save), "--save")
    return replace(job, save=None, args=job.args.preceded_by(words))


def _words(directory: str, job: JobSpec, script: Script) -> tuple[str, ...]:
    if (given := job.args.value(OUTPUT)) is not None:
        raise WrongUsage(
            f"`--save {directory}` and `{OUTPUT} {given}` both name a directory", "keep one of them"
        )
    recipe = recipe_of(job.script)
    if recipe is not None and recipe.saves_model_only:
        return (OUTPUT, directory, *_OF_A_RECIPE)
    if script.save_flag:
        return (script.save_flag, directory)
    if script.takes_trainer_args:
        return (OUTPUT, directory)
    raise WrongUsage(
        f"`--save {directory}`: {script.path.name} decides itself where it saves",
        "pass the argument that it has for this after `--`",
    )
