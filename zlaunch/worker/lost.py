"""What is done in place of a zlaunch that was killed: `zlaunch.worker.lost RUN_DIR [OP_CACHE]`.

The reaper runs it when all processes of the job have ended. It cleans up and records the end.
"""

import contextlib
import sys
import time
from pathlib import Path

from zlaunch.hosts.machine.build_lock import left_locks
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.read import read_rank_records, read_record
from zlaunch.rundir.record import EndingRecord, JobRecord, RankRecord
from zlaunch.rundir.write import write_ending
from zlaunch.worker.cleanup import buffers_here, delete

SHOW_OOM_KILLS = "`dmesg -T | grep -i 'killed process'`"
"""Prints the kernel's line about a process that it killed, if this user may read them."""


def main(run_dir: RunDir, op_cache: Path | None) -> None:
    """Delete what the job left outside of its run directory, and record the end if zlaunch has not.

    The directory may be gone.
    """
    job = read_record(run_dir.job, JobRecord)
    delete(job.get("swap_dirs", []), buffers_here(read_rank_records(run_dir, RankRecord).values()))
    if op_cache is not None:
        for lock in left_locks(op_cache):
            lock.unlink(missing_ok=True)
    if not job:
        return
    ending: EndingRecord = {
        "how": "lost",
        "exit_status": 137,
        "returncode": -9,
        "verdict": {
            "code": "zlaunch-killed",
            "cause": "zlaunch itself was killed, so the job was stopped",
            "host": job["host"],
            "facts": [f"process {job['zlaunch_pid']} ended without recording how the run ended"],
            "advice": [f"{SHOW_OOM_KILLS} shows whether the kernel killed it to free memory"],
        },
        "started": job["started"],
        "seconds": time.time() - job["started"],
    }
    with contextlib.suppress(OSError):
        if not run_dir.ending.exists():
            write_ending(run_dir, ending)


if __name__ == "__main__":
    main(RunDir(Path(sys.argv[1])), next(map(Path, sys.argv[2:]), None))
