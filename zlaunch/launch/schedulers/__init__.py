"""The schedulers: a table of modules with the same functions."""

from collections.abc import Mapping
from typing import Protocol

from zlaunch.launch.schedulers import slurm
from zlaunch.launch.schedulers.request import JobStatus, SubmitRequest


class Scheduler(Protocol):
    """A module of this package."""

    @property
    def FILE(self) -> str:  # noqa: N802 - a constant of the module
        """What is written for it, in a word."""

    @property
    def OWN_OPTIONS(self) -> tuple[str, ...]:  # noqa: N802
        """The options of the command line that only some schedulers have."""

    def check(self, request: SubmitRequest) -> None:
        """Raise WrongUsage for a request that it cannot serve."""

    def render(self, request: SubmitRequest) -> str:
        """The text that one would have written by hand."""

    def submit(self, text: str, request: SubmitRequest) -> str:
        """Submit a text, and return the identifier of the job."""

    def look(self, job: str, request: SubmitRequest) -> JobStatus:
        """Ask for the state of a job; raise Unavailable if there is no answer."""

    def cancel_command(self, job: str, request: SubmitRequest) -> str:
        """The command that ends a job."""


SCHEDULERS: Mapping[str, Scheduler] = {"slurm": slurm}
