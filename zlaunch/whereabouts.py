"""Where a process id is valid, and whether its process is alive.

psutil is imported only when there is a process to look at.
"""

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import psutil


class Whereabouts(NamedTuple):
    """Where a process id means this process: elsewhere it may be another one, or none."""

    host: str
    boot: str
    """One start of the kernel; empty if the system does not tell."""
    pid_namespace: str
    """The process ids that a container sees; empty if the system does not tell."""


def whereabouts() -> Whereabouts:
    """Tell where the process ids are valid that can be seen from here."""
    boot = namespace = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    return Whereabouts(os.uname().nodename, boot, namespace)


def is_alive(process: "psutil.Process") -> bool:
    """Whether a process is running; a zombie is not."""
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
