"""What may stand in the place of a file, such as a pipe that nobody writes to."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def _socket(place: Path) -> None:
    here = Path.cwd()
    os.chdir(place.parent)  # the path of a socket may have 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(place.name)
    finally:
        os.chdir(here)


KINDS: dict[str, Callable[[Path], object]] = {
    "named pipe": os.mkfifo,
    "directory": os.mkdir,
    "socket": _socket,
    "device": lambda place: place.symlink_to("/dev/zero"),
    "link to nothing": lambda place: place.symlink_to("nothing"),
    "link to itself": lambda place: place.symlink_to(place.name),
}
"""Name of a kind → what makes one."""


@contextmanager
def replaced(file: Path, kind: str) -> Iterator[None]:
    """Put something else in the place of a file."""
    kept = file.with_name(f".{file.name}.kept")
    file.rename(kept)
    try:
        KINDS[kind](file)
        yield
    finally:
        if kind == "directory":
            file.rmdir()
        else:
            file.unlink(missing_ok=True)
        kept.rename(file)


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raise TimeoutError if something waits for ever."""

    def hung(*_: object) -> None:
        raise TimeoutError("it waits for ever")

    before = signal.signal(signal.SIGALRM, hung)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
