"""What the file `lock` in the folder of a native op means to torch.

Up to torch 2.13, a build creates the file and deletes it at its end (`torch/utils/file_baton.py`). Every
other process waits as long as the file is there: forever, if the build was killed. Newer ones lock the file
in the kernel (`flock`, through filelock): this lock ends with its process, and the file stays for the next
build. On a file system that has no such locks, filelock goes by the file, too.
"""

import fcntl
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from zlaunch.hosts.machine.interpreter import Interpreter
from zlaunch.whereabouts import whereabouts

LockState = Literal["free", "held", "left"]
"""Torch would build; wait for a process that builds; wait for one that was killed."""

QUIET_SECONDS = 900.0
"""No compiler works longer on one file of an op."""

_RELEASE_SECONDS = 0.5
"""torch closes its lock and then deletes the file. On a busy machine, this much time may pass in between."""

_NETWORK = "nfs|lustre|gpfs|beegfs|ceph|cifs|smb|fuse|9p|virtiofs|afs|glusterfs|wekafs"


def lock_state(lock: Path, python: Interpreter) -> LockState:
    """What a lock means to the torch of an interpreter."""
    if not lock.exists():
        return "free"
    if _is_locked_in_kernel(lock) is False and not locks_by_file(python):
        return "free"
    if is_left(lock):
        return "left"
    if not lock.exists():
        return "free"
    return "held"


def locks_by_file(python: Interpreter) -> bool:
    """Whether torch takes the file itself for the lock, which a killed build leaves behind."""
    with suppress(OSError):
        source = python.folder("torch") / "utils" / "cpp_extension.py"
        return "FileLock(" not in source.read_text("utf-8", "replace")
    return True


def lock_holder(lock: Path) -> int | None:
    """The process that has the lock open, as torch has during a build."""
    target = str(lock.resolve())
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()) == target:
                return int(link.parts[2])
        except OSError:
            continue
    return None


def lock_age(lock: Path) -> float:
    """Seconds since a lock was taken; 0 if it has just been released."""
    with suppress(FileNotFoundError):
        return time.time() - lock.stat().st_mtime
    return 0.0


def left_locks(folder: Path) -> frozenset[Path]:
    """Locks of builds that were killed, in a directory of ops where the file is the lock."""
    return frozenset(lock for lock in folder.absolute().glob("*/lock") if is_left(lock))


def is_left(lock: Path) -> bool:
    """Whether no process builds where the file is the lock, as far as can be seen from here.

    It is looked at twice, since a build that is just ending has closed its lock but not deleted it yet. If
    somebody else deleted it then, torch would fail.
    """
    if not _has_no_builder(lock):
        return False
    time.sleep(_RELEASE_SECONDS)
    return _has_no_builder(lock)


def _has_no_builder(lock: Path) -> bool:
    """Whether a lock is there, and no process has it open.

    A process of another user, container or host cannot be seen. Then its build is over if it has not written
    a file for a while.
    """
    try:
        if _is_locked_in_kernel(lock) or lock_holder(lock) is not None:
            return False
        if _would_be_seen(lock):
            return True
        changed = max(file.stat().st_mtime for file in (lock, *lock.parent.iterdir()))
    except OSError:
        return False  # it is gone
    return time.time() - changed > QUIET_SECONDS


def _is_locked_in_kernel(lock: Path) -> bool | None:
    """Whether a process has a lock of the kernel on the file; None if that cannot be asked."""
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def _would_be_seen(lock: Path) -> bool:
    """Whether a process that has the lock open would be found."""
    is_readable = os.getuid() in (0, lock.stat().st_uid)
    if not is_readable:
        return False
    signed = lock.read_text("utf-8", "replace")
    return signed == " ".join(whereabouts()) if signed else not _is_on_network(lock)


def _is_on_network(file: Path) -> bool:
    import psutil

    mounts = {Path(disk.mountpoint): disk.fstype for disk in psutil.disk_partitions(all=True)}
    here = next((parent for parent in file.resolve().parents if parent in mounts), Path("/"))
    return re.match(_NETWORK, mounts.get(here, "")) is not None
