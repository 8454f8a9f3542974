"""The pieces of a translation."""

from collections.abc import Iterator

from zlaunch.config.translate.flags import GivenFlag
from zlaunch.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Option:
    """An option of `zlaunch train`, with its value; None for a switch."""

    name: str
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """A variable in front of the command."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Note:
    """What a flag became, and why."""

    about: str
    text: str


Piece = Option | Assignment | Note


def becomes(given: GivenFlag, name: str, value: str) -> Iterator[Piece]:
    """Translate a flag to an option of zlaunch."""
    yield Option(name, value)
    yield Note(given.written, f"`{name} {value}`")


def sets(given: GivenFlag, name: str, value: str) -> Iterator[Piece]:
    """Translate a flag to a variable in front of the command."""
    yield Assignment(name, value)
    yield Note(given.written, f"`{name}={value}` in front of the command")


def not_needed(given: GivenFlag, why: str) -> Note:
    """Note that a flag is not needed."""
    return Note(given.written, f"left out: {why}")


def no_equivalent(given: GivenFlag, why: str) -> Note:
    """Note that a flag has no equivalent."""
    return Note(given.written, f"lost: {why}")
