"""A signature: recognizes one kind of failure."""

from collections.abc import Callable
from dataclasses import dataclass

from zlaunch.diagnosis.case import Case, Reading

Read = Callable[[Case], Reading | None]


@dataclass(frozen=True, slots=True)
class Signature:
    """One kind of failure and the function that recognizes it."""

    code: str
    tell: str
    """What it is recognized by, for docs/endings.md."""
    read: Read

    @property
    def what(self) -> str:
        """The failure in one line."""
        return " ".join((self.read.__doc__ or "").split()).rstrip(".")


def signature(code: str, tell: str) -> Callable[[Read], Signature]:
    """Make a signature of a function whose docstring describes the failure."""
    return lambda read: Signature(code, tell, read)
