"""The command that trains with a ds_config that was written."""

from collections.abc import Sequence
from pathlib import Path

from zlaunch.console import command_lines
from zlaunch.files import argument
from zlaunch.job.spec import JobSpec


def training_command(
    job: JobSpec, program: Sequence[str], ds_config: Path, script_args: Sequence[str]
) -> list[str]:
    """Write the lines of `zlaunch train` for a program with this ds_config, in the environment of the job."""
    words = ["zlaunch", "train", *program]
    if job.python is not None:
        words += ["--python", str(job.python)]
    words += ["--ds-config", argument(ds_config)]
    if job.gpus is not None and job.gpus.count is not None:
        words += ["--gpus", str(job.gpus.count)]
    if script_args:
        words += ["--", *script_args]
    return command_lines(words)
