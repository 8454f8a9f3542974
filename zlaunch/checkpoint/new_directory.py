"""Write a directory that appears when it is complete."""

import contextlib
import fcntl
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
    """Fill a directory that gets its name when it is complete; an error or a signal leaves nothing.

    What a killed process has left is deleted first. Raise Unavailable if the disk has less free space
    than `needed` bytes, or the directory cannot be written.
    """
    place, path = nearest(path), path.absolute()
    before = f".{path.name}.{os.uname().nodename}."
    for left in list(_partial_directories(place, before)) if place == path.parent else ():
        with _locked(left) as is_abandoned:
            if is_abandoned:
                shutil.rmtree(left, ignore_errors=True)
    free = shutil.disk_usage(place).free
    if free < needed:
        raise Unavailable(f"`{path}` needs {size(needed)}, and `{place}` has {size(free)} left")
    unlocked = path.with_name(f"{before}{os.getpid()}")  # the name of one that is never deleted
    partial = unlocked.with_name(f"{unlocked.name}{PARTIAL}")
    missing = [folder for folder in path.parents if place in folder.parents]
    try:
        unlocked.mkdir(parents=True, exist_ok=True)
        with _locked(unlocked), signals_as_exceptions():
            unlocked.rename(partial)
            yield partial
            partial.rename(path)
    except OSError as error:
        raise Unavailable(f"`{path}` cannot be written: {error.strerror}") from None
    finally:
        for folder in (unlocked, partial):
            shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # the first that is not empty, which all are if `path` was written
            for folder in missing:
                folder.rmdir()


def _partial_directories(folder: Path, before: str) -> Iterator[Path]:
    """Find the directories that processes of this host fill, or have not filled to the end."""
    with contextlib.suppress(OSError):
        for inner in folder.iterdir():
            if inner.name.startswith(before) and inner.name.endswith(PARTIAL):
                yield inner


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Lock a directory until this process ends; False if another process has locked it, or none can."""
    opened = -1
    try:
        opened = os.open(folder, os.O_RDONLY)
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_locked = True
    except OSError:
        is_locked = False
    try:
        yield is_locked
    finally:
        if opened >= 0:
            os.close(opened)
