"""What runs around a launcher: `python -m zlaunch.worker.guard RUN_DIR ARGV…`.

It ends the launcher and everything below it as soon as the zlaunch of this run is gone: even
SIGKILL leaves nothing running, no ssh connection open and nothing on NVMe, and the run directory
says what happened. Ranks on other hosts are told through the run directory, and the launcher
itself gets no signal then.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from zlaunch.process import LauncherProcess, end_like, is_alive, lifeline, outlive_parent
from zlaunch.rundir.control import write_stop
from zlaunch.rundir.layout import RunDir, write_ending
from zlaunch.worker.cleanup import buffers_here, delete

GRACE_SECONDS = 7.0
"""How long the launcher may take to end after a signal was passed on to it."""


def main(layout: RunDir, argv: Sequence[str]) -> int:
    """Run a launcher and return what it returned."""
    job = json.loads(layout.job.read_text("utf-8"))
    tell = partial(write_stop, layout) if job["over_ssh"] else None
    child = LauncherProcess(argv, os.environ, sys.stdout.buffer, GRACE_SECONDS, tell)
    depends_on = lifeline(job["zlaunch_pid"])
    outlive_parent()  # not before: until now it dies with its parent, and the launcher with it
    returncode = child.wait(lambda: child.depend_on(depends_on))
    if not all(is_alive(process) for process in depends_on):
        _finish(layout, job)
    elif returncode == 0 and child.stopped_by is None and _was_stopped(layout):
        return -signal.SIGKILL
    return returncode


def _was_stopped(layout: RunDir) -> bool:
    """Whether a rank did not end by itself: for a killed node launcher DeepSpeed's runner returns 0."""
    for file in layout.ranks.glob("rank-*.json"):
        with contextlib.suppress(OSError, ValueError):
            record = json.loads(file.read_text("utf-8"))
            if "started" in record and (record.get("stopped_by") or record.get("returncode") is None):
                return True
    return False


def _finish(layout: RunDir, job: Mapping[str, Any]) -> None:
    """Do what zlaunch would have done: it was killed."""
    delete(job["swap_dirs"], buffers_here(layout))
    verdict = {
        "code": "zlaunch-killed",
        "cause": "zlaunch itself was killed, so the job was ended",
        "host": job["host"],
        "facts": [f"process {job['zlaunch_pid']} is gone and wrote no ending"],
        "advice": [],
    }
    ending = {"how": "lost", "exit_status": 137, "returncode": -9, "verdict": verdict}
    times = {"started": job["started"], "seconds": time.time() - job["started"]}
    with contextlib.suppress(OSError):
        if not layout.ending.exists():
            write_ending(layout, json.dumps({**ending, **times}, indent=2) + "\n")


if __name__ == "__main__":
    end_like(main(RunDir(Path(sys.argv[1])), sys.argv[2:]))
