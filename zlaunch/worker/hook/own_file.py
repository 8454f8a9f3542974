"""A file that the hook writes from inside the script's process."""

import contextlib
import fcntl
import os
from pathlib import Path

FIRST_DESCRIPTOR = 200
"""zlaunch's own file descriptors start here, so that those of the script are the same as without zlaunch."""


class OwnFile:
    """An open file that is written with one call each, so that it survives SIGKILL."""

    def __init__(self, file: Path) -> None:
        """Begin with an empty file; without its directory, nothing is ever written."""
        self.descriptor, self._identity = -1, (0, 0)
        with contextlib.suppress(OSError):
            self.descriptor = open_apart(file)
            self._identity = _device_and_inode(self.descriptor)

    def overwrite(self, data: bytes) -> None:
        """Write at the start of the file; raise OSError if that fails."""
        if self._is_ours():
            os.pwrite(self.descriptor, data, 0)

    def append(self, data: bytes) -> None:
        """Write at the end of what was written; raise OSError if that fails."""
        if self._is_ours():
            os.write(self.descriptor, data)

    def _is_ours(self) -> bool:
        """Whether the descriptor is still this file: a script may close all files and open its own."""
        return _device_and_inode(self.descriptor) == self._identity


def open_apart(file: Path) -> int:
    """Open a file empty, with a descriptor that the script would not get."""
    first = os.open(file, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC, 0o644)
    with contextlib.suppress(OSError):  # with a low limit on open files, keep the first
        apart = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR)
        os.close(first)
        return apart
    return first


def _device_and_inode(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
