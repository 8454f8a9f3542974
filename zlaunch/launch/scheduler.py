"""What a scheduler is: the job that it is asked for, what it does with it, and the state that it reports."""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Generic, TypeVar

from zlaunch.errors import Unavailable
from zlaunch.frozen import dataclass
from zlaunch.process import answer_of

SAVED = 75
"""Exit status of a training that has saved a checkpoint and should be started again."""

MOST_RESTARTS = 100
"""Maximum number of restarts of a job that saves a checkpoint each time."""


@dataclass(frozen=True)
class SubmitRequest:
    """One job for a scheduler; None for everything that the user did not set.

    A scheduler with options of its own extends it: these fields are its options on the command line.
    """

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
    requeue: bool = True

    def without_gpus(self) -> list[str]:
        """Say that the job asks for no GPU, if it does not."""
        if self.gpus:
            return []
        return ["the job asks for no GPU: `--gpus N` asks for N on each node"]

    @property
    def script_words(self) -> tuple[str, ...]:
        """The arguments of the script, with `--` before them; empty without any."""
        if not self.script_args:
            return ()
        return ("--", *self.script_args)

    @property
    def run_name(self) -> str:
        """The name of the job as a part of a file name."""
        return re.sub(r"[/\0]+", "-", self.name).lstrip(".-") or "job"

    @property
    def restarts(self) -> int:
        """How often the job may be started again."""
        return MOST_RESTARTS if self.requeue else 0


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
    if program.is_file():
        return (str(program),)
    return (sys.executable, "-m", "zlaunch")


Request = TypeVar("Request", bound=SubmitRequest)


@dataclass(frozen=True)
class Scheduler(Generic[Request]):
    """A scheduler; each module of `launch/schedulers` has one."""

    title: str
    request: type[Request]
    check: Callable[[Request], list[str]]
    """Raises WrongUsage for a request that it cannot serve; returns what the user may have overlooked."""
    render: Callable[[Request], str]
    """The text that one would have written by hand."""
    submit: Callable[[str, Request], str]
    """Submits a text, and returns the identifier of the job."""
    look: Callable[[str, Request], JobStatus]
    """Asks for the state of a job; raises Unavailable if there is no answer."""
    cancel_command: Callable[[str, Request], str]
    """The command that ends a job."""
    shares_files: bool = False
    """Whether its nodes see the files of the machine that submits."""
    has_time_limit: bool = False
    """Whether it ends a job at a time limit; otherwise each zlaunch watches the time itself."""

    @property
    def options(self) -> tuple[str, ...]:
        """The names of its own options."""
        shared = {member.name for member in fields(SubmitRequest)}
        return tuple(member.name for member in fields(self.request) if member.name not in shared)


ANSWER_SECONDS = 60
"""A controller under load takes its time."""


class ProgramFailed(Unavailable):
    """A program of a scheduler has failed: `said` is the end of what it printed."""

    def __init__(self, message: str, said: str, hint: str | None = None) -> None:
        """Keep what it said, beside the message."""
        super().__init__(message, hint)
        self.said = said


def ask(argv: Sequence[str], text: str = "", hint: str | None = None) -> str:
    """Run a program with a text as its input, and return its output; raise Unavailable if it fails."""
    program = argv[0]
    try:
        done = answer_of(argv, text, ANSWER_SECONDS)
    except FileNotFoundError:
        where = f"run this where `{program}` is, such as on a login node"
        raise Unavailable(
            f"`{program}` is not installed here", f"{where}; `--dry-run` needs no cluster"
        ) from None
    except TimeoutError:
        raise ProgramFailed(f"`{program}` gave no answer within {ANSWER_SECONDS} s", "") from None
    if done.returncode:
        said = " ".join((done.err.strip() or done.out.strip()).splitlines()[-3:])
        raise ProgramFailed(f"`{program}` failed: {said or f'exit status {done.returncode}'}", said, hint)
    return done.out.strip()
