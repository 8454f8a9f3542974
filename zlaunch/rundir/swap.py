"""The directories of runs on an NVMe drive: whose they are, and which were left behind."""

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from zlaunch.rundir.owner import is_running, own_identity
from zlaunch.rundir.read import read_record
from zlaunch.rundir.record import JobRecord
from zlaunch.rundir.write import write_record

_OWNER = ".zlaunch"
"""In each directory, the process that it belongs to."""

_NAME = re.compile(r"zlaunch-.+-[0-9a-f]{8}")


class LeftBehind(NamedTuple):
    """A directory of another run."""

    directory: Path
    is_over: bool
    """Whether its zlaunch has ended; otherwise that is not recorded."""

    def delete(self) -> int:
        """Delete it, and return the bytes of its files."""
        sizes = []
        with contextlib.suppress(OSError):
            sizes = [file.stat().st_size for file in self.directory.rglob("*") if file.is_file()]
        shutil.rmtree(self.directory, ignore_errors=True)
        return sum(sizes)


def make_swap_dir(directory: Path) -> None:
    """Make the directory of this run. May raise OSError."""
    directory.mkdir(parents=True)
    write_record(directory / _OWNER, own_identity())


def remove_unused(directory: Path) -> None:
    """Remove the directory of a run that does not start. May raise OSError."""
    (directory / _OWNER).unlink(missing_ok=True)
    directory.rmdir()


def left_behind(drive: Path) -> Iterator[LeftBehind]:
    """Find the directories of runs that are over on a drive, and those of which that is unknown.

    Each run deletes its own, unless all its processes are killed at once, or the machine stops.
    """
    with contextlib.suppress(OSError):
        for directory in sorted(drive.iterdir()):
            if _NAME.fullmatch(directory.name) and directory.is_dir() and not directory.is_symlink():
                owner = read_record(directory / _OWNER, JobRecord)
                if not owner:  # of an older zlaunch, or being made
                    yield LeftBehind(directory, is_over=False)
                elif is_running(owner) is False:
                    yield LeftBehind(directory, is_over=True)
