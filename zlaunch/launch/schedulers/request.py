"""A job for a scheduler, and the state of a job that the scheduler reports."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

SAVED = 75
"""Exit status of a training that has saved a checkpoint and should be started again."""

MOST_RESTARTS = 100
"""Maximum number of restarts of a job that saves a checkpoint each time."""


@dataclass(frozen=True)
class SubmitRequest:
    """One job for a scheduler; None for everything that the user did not set."""

    words: tuple[str, ...]
    """The command line of `zlaunch train` on each node, up to `--`, without its program."""
    script_args: tuple[str, ...]
    """The arguments after `--`."""
    name: str
    directory: Path
    """The working directory, for schedulers whose nodes share it with this machine."""
    run_dir: Path | None = None
    nodes: int = 1
    gpus: int | None = None
    """GPUs of each node."""
    env: tuple[str, ...] = ()
    """Variables whose value each node must have."""
    time_limit: int | None = None
    """Seconds."""
    save_within: float | None = None
    """Seconds that the ranks may take to save."""
    is_resumable: bool = False
    """Whether a restart can resume from a checkpoint of the job."""
    account: str | None = None
    partition: str | None = None
    gres: str | None = None
    array: str | None = None
    requeue: bool = True
    options: Mapping[str, str | None] = field(default_factory=dict)
    """Options in the words of the scheduler; None for a switch."""
    image: str | None = None
    namespace: str | None = None
    kind: str | None = None
    volumes: tuple[tuple[str, str], ...] = ()
    """Claims of volumes, and where they are mounted."""
    workdir: str | None = None
    """The working directory in the image."""

    def without_gpus(self) -> list[str]:
        """Say that the job asks for no GPU, if it does not."""
        return [] if self.gpus else ["the job asks for no GPU: `--gpus N` asks for N on each node"]

    @property
    def run_name(self) -> str:
        """The name of the job as a part of a file name."""
        return re.sub(r"[/\0]+", "-", self.name).lstrip(".-") or "job"

    @property
    def restarts(self) -> int:
        """How often the job may be started again."""
        return MOST_RESTARTS if self.requeue else 0

    @property
    def resumes(self) -> bool:
        """Whether its command line has `--resume latest`, which resumes in the first start, too."""
        return ("--resume", "latest") in pairwise(self.words) or "--resume=latest" in self.words


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The state of a job as the scheduler reports it."""

    name: str
    """The state in the words of the scheduler, in lower case."""
    reason: str | None = None
    where: str | None = None
    """The nodes it runs on."""
    is_over: bool = False
    exit_status: int | None = None
    restarts: int = 0
    output: Path | tuple[str, ...] | None = None
    """The file with its output, or a program that prints it; None while there is none."""
    runs: tuple[Path, ...] = ()
    """The run directories of its last start, if they can be seen from here."""


def own_program() -> tuple[str, ...]:
    """The command line of this zlaunch, for machines that see the same files."""
    program = Path(sys.executable).with_name("zlaunch")
    return (str(program),) if program.is_file() else (sys.executable, "-m", "zlaunch")
