"""The schedulers: a table of modules with the same functions."""

from collections.abc import Mapping
from typing import Protocol

from zlaunch.launch.schedulers import kubernetes, ray, slurm
from zlaunch.launch.schedulers.request import JobStatus, SubmitRequest


class Scheduler(Protocol):
    """A module of this package."""

    OWN_OPTIONS: tuple[str, ...]
    """The options of the command line that not all schedulers have."""
    SHARES_FILES: bool
    """Whether its nodes see the files of the machine that submits."""
    HAS_TIME_LIMIT: bool
    """Whether it ends a job at a time limit; otherwise each zlaunch watches the time itself."""

    def check(self, request: SubmitRequest) -> list[str]:
        """Raise WrongUsage for a request that it cannot serve; return what the user may have overlooked."""

    def render(self, request: SubmitRequest) -> str:
        """The text that one would have written by hand."""

    def submit(self, text: str, request: SubmitRequest) -> str:
        """Submit a text, and return the identifier of the job."""

    def look(self, job: str, request: SubmitRequest) -> JobStatus:
        """Ask for the state of a job; raise Unavailable if there is no answer."""

    def cancel_command(self, job: str, request: SubmitRequest) -> str:
        """The command that ends a job."""


SCHEDULERS: Mapping[str, Scheduler] = {"slurm": slurm, "kubernetes": kubernetes, "ray": ray}
