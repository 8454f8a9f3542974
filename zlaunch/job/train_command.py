"""The command that trains a program, to be shown."""

from collections.abc import Sequence

from zlaunch.job.spec import JobSpec


def train_words(
    job: JobSpec, program: Sequence[str], options: Sequence[str], script_args: Sequence[str]
) -> list[str]:
    """Write the words of `zlaunch train` for a program, in the environment of the job."""
    words = ["zlaunch", "train", *program]
    if job.python is not None:
        words += ["--python", str(job.python)]
    words += options
    if script_args:
        words += ["--", *script_args]
    return words
