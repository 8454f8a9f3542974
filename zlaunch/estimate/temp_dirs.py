"""Temporary directories for other programs, deleted even if those programs or this one are killed.

The process that makes a directory holds a lock on it, which the kernel releases when the process ends.
Directories without a lock are leftovers, which are deleted when the next one is made.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path


class Scratch:
    """A locked temporary directory."""

    def __init__(self, kind: str) -> None:
        """Make a temporary directory; raise OSError if that fails."""
        prefix = f"zlaunch-{kind}-"
        _delete_leftovers(prefix)
        self.path, self._lock = _make(prefix)

    def delete(self) -> None:
        """Delete the directory; what cannot be deleted yet is left over."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _make(prefix: str) -> tuple[Path, int]:
    """Make and lock a directory; try again if another process took it for a leftover in between."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            os.close(lock)


def _delete_leftovers(prefix: str) -> None:
    """Delete this user's directories that no process holds a lock on."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
