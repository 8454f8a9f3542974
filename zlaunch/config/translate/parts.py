"""What a translation is put together from."""

from collections.abc import Iterator
from dataclasses import dataclass

from zlaunch.config.translate.flags import GivenFlag


@dataclass(frozen=True, slots=True)
class Option:
    """An option of `zlaunch train`, with its value."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """A variable in front of the command."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Note:
    """What became of something that was asked for, and why."""

    about: str
    text: str


Piece = Option | Assignment | Note


def becomes(given: GivenFlag, name: str, value: str) -> Iterator[Piece]:
    """Turn what was given into an option of zlaunch, and say so."""
    yield Option(name, value)
    yield Note(given.said, f"`{name} {value}`")


def not_needed(given: GivenFlag, why: str) -> Note:
    """Say that something is not needed."""
    return Note(given.said, f"left out: {why}")


def no_equivalent(given: GivenFlag, why: str) -> Note:
    """Say that something has no equivalent."""
    return Note(given.said, f"lost: {why}")
