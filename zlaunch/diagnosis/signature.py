"""One kind of death: a code, a line that says what it is, and a function that knows it when it sees it."""

from collections.abc import Callable
from dataclasses import dataclass

from zlaunch.diagnosis.case import Case, Reading

Read = Callable[[Case], Reading | None]


@dataclass(frozen=True, slots=True)
class Signature:
    """What tells one death from all others."""

    code: str
    tell: str
    """What gives it away, for the page about endings."""
    read: Read

    @property
    def what(self) -> str:
        """Say in one line what the death is."""
        return " ".join((self.read.__doc__ or "").split()).rstrip(".")


def signature(code: str, tell: str) -> Callable[[Read], Signature]:
    """Make a signature of a function; its docstring says what the death is."""
    return lambda read: Signature(code, tell, read)
