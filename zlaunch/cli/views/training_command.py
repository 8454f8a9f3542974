"""The command that trains with a ds_config that was written."""

from collections.abc import Sequence
from pathlib import Path

from zlaunch.console import command_lines
from zlaunch.files import argument
from zlaunch.job.spec import JobSpec
from zlaunch.job.train_command import train_words


def training_command(
    job: JobSpec, program: Sequence[str], ds_config: Path, script_args: Sequence[str]
) -> list[str]:
    """Write the lines of `zlaunch train` for a program with this ds_config, in the environment of the job."""
    options = ["--ds-config", argument(ds_config)]
    if job.gpus is not None and job.gpus.count is not None:
        options += ["--gpus", str(job.gpus.count)]
    return command_lines(train_words(job, program, options, script_args))
