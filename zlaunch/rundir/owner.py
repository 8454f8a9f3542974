"""The zlaunch process that a run belongs to: its identity in `job.json`, and how it is found again.

psutil is imported when there is a process to look at: a dry run looks at none.
"""

import contextlib
import math
import os
from typing import TYPE_CHECKING

from zlaunch.rundir.record import JobRecord
from zlaunch.whereabouts import is_alive, whereabouts

if TYPE_CHECKING:
    import psutil


def own_identity() -> JobRecord:
    """Identify this process: a process id alone may be given to another process later."""
    import psutil

    here = whereabouts()
    return {
        "host": here.host,
        "boot": here.boot,
        "pid_namespace": here.pid_namespace,
        "zlaunch_pid": os.getpid(),
        "zlaunch_started": psutil.Process().create_time(),
    }


def is_running(job: JobRecord) -> bool | None:
    """Whether the zlaunch of a run is running; None if that cannot be seen from here.

    That is so on another host, and in another container of this host.
    """
    if _is_visible(job):
        return owner_process(job) is not None
    if _was_before_boot(job):
        return False
    return None


def _is_visible(job: JobRecord) -> bool:
    """Whether the process id of a run is valid here. Older versions recorded the host alone."""
    return all(job.get(name, value) in ("", value) for name, value in whereabouts()._asdict().items())


def _was_before_boot(job: JobRecord) -> bool:
    import psutil

    here = whereabouts()
    is_other_boot = job.get("host") == here.host and job.get("boot", here.boot) not in ("", here.boot)
    return is_other_boot and job.get("started", math.inf) < psutil.boot_time()


def owner_process(job: JobRecord) -> "psutil.Process | None":
    """Find the zlaunch process of a run; None if it has ended, or cannot be seen from here."""
    pid = job.get("zlaunch_pid", 0)
    if pid <= 0 or not _is_visible(job):
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
