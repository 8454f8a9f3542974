"""The zlaunch process that a run belongs to: its identity in `job.json`, and how it is found again.

psutil is imported when there is a process to look at: a dry run looks at none.
"""

import contextlib
import os
import socket
from typing import TYPE_CHECKING

from zlaunch.process import is_alive
from zlaunch.rundir.record import JobRecord

if TYPE_CHECKING:
    import psutil


def own_identity() -> JobRecord:
    """Identify this process: a process id alone may be given to another process later."""
    import psutil

    started = psutil.Process().create_time()
    return {"host": socket.gethostname(), "zlaunch_pid": os.getpid(), "zlaunch_started": started}


def is_running(job: JobRecord) -> bool | None:
    """Whether the zlaunch of a run is running; None if it is not on this host, or its host is unknown."""
    host = job.get("host")
    if host and host != socket.gethostname():
        return None
    return owner_process(job) is not None


def owner_process(job: JobRecord) -> "psutil.Process | None":
    """Find the zlaunch process of a run on this host; None if it has ended."""
    pid = job.get("zlaunch_pid", 0)
    if pid <= 0:
        return None
    import psutil

    with contextlib.suppress(psutil.Error, ValueError, OverflowError):
        process = psutil.Process(pid)
        if is_same_process(job, process.create_time()) and is_alive(process):
            return process
    return None


def is_same_process(job: JobRecord, created: float) -> bool:
    """Whether the process with a run's process id, created at a time, is that run's zlaunch.

    Linux derives creation times from the boot time, which shifts when the clock is set. If the record has no
    creation time, the process must be older than the run.
    """
    if (known := job.get("zlaunch_started")) is not None:
        return abs(created - known) < 2.0
    started = job.get("started")
    return started is not None and created <= started
