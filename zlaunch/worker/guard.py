"""The guard around a launcher: `zlaunch.worker.guard RUN_DIR ARGV…`.

It ends the launcher and its descendants as soon as the zlaunch of this run is gone. Even after SIGKILL, no
process and no ssh connection remains, NVMe is cleaned up, and the end is recorded in the run directory. Over
ssh, the ranks are stopped through a control file, and the launcher gets no signal.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from zlaunch.process import LauncherProcess, end_like, is_alive, lifeline, outlive_parent
from zlaunch.rundir.control import write_stop
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.read import parse_record, read_rank_records
from zlaunch.rundir.record import EndingRecord, JobRecord, RankRecord
from zlaunch.rundir.write import write_ending
from zlaunch.worker.cleanup import buffers_here, delete

GRACE_SECONDS = 7.0
"""How long the launcher may take to end after a signal."""


def main(run_dir: RunDir, argv: Sequence[str]) -> int:
    """Run a launcher and return what it returned."""
    job = parse_record(run_dir.job.read_bytes(), JobRecord)
    tell = partial(write_stop, run_dir) if job["over_ssh"] else None
    child = LauncherProcess(argv, os.environ, sys.stdout.buffer, GRACE_SECONDS, tell)
    depends_on = lifeline(job["zlaunch_pid"])
    outlive_parent()  # not before: until now it dies with its parent, and the launcher with it
    returncode = child.wait(lambda: child.depend_on(depends_on))
    if not all(is_alive(process) for process in depends_on):
        _finish(run_dir, job)
    elif returncode == 0 and child.stopped_by is None and _was_stopped(run_dir):
        return -signal.SIGKILL
    return returncode


def _was_stopped(run_dir: RunDir) -> bool:
    """Whether a rank was stopped or killed: DeepSpeed's runner returns 0 if its node launcher was killed."""
    ranks = read_rank_records(run_dir, RankRecord).values()
    return any(rank.get("stopped_by") or "returncode" not in rank for rank in ranks)


def _finish(run_dir: RunDir, job: JobRecord) -> None:
    """Clean up and record the ending in place of zlaunch, which was killed."""
    delete(job["swap_dirs"], buffers_here(run_dir))
    ending: EndingRecord = {
        "how": "lost",
        "exit_status": 137,
        "returncode": -9,
        "verdict": {
            "code": "zlaunch-killed",
            "cause": "zlaunch itself was killed, so the job was stopped",
            "host": job["host"],
            "facts": [f"process {job['zlaunch_pid']} ended without recording how the run ended"],
            "advice": [],
        },
        "started": job["started"],
        "seconds": time.time() - job["started"],
    }
    with contextlib.suppress(OSError):
        if not run_dir.ending.exists():
            write_ending(run_dir, ending)


if __name__ == "__main__":
    end_like(main(RunDir(Path(sys.argv[1])), sys.argv[2:]))
