"""Write a directory that appears when it is complete."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from zlaunch.errors import Unavailable, WrongUsage
from zlaunch.files import nearest
from zlaunch.process import signals_as_exceptions
from zlaunch.units import size

PARTIAL = ".partial"
"""The end of the name of a directory that is being filled."""


def refuse_existing(path: Path) -> None:
    """Raise WrongUsage if something has a name already, be it a link to nothing."""
    if os.path.lexists(path):
        raise WrongUsage(f"`{path}` exists already", "name a path that does not exist, or delete it first")


@contextlib.contextmanager
def new_directory(path: Path, needed: int) -> Iterator[Path]:
    """Fill a directory that then gets its name; an error or a signal leaves nothing of it.

    Raise Unavailable if the disk has less free space than `needed` bytes, or the directory cannot be written.
    """
    place, path = nearest(path), path.absolute()
    free = shutil.disk_usage(place).free
    if free < needed:
        raise Unavailable(f"`{path}` needs {size(needed)}, and `{place}` has {size(free)} left")
    partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
    try:
        partial.mkdir(parents=True)
        with signals_as_exceptions():
            yield partial
        partial.rename(path)
    except OSError as error:
        raise Unavailable(f"`{path}` cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
