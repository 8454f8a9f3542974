"""The guard around a launcher: `zlaunch.worker.guard RUN_DIR ARGV…`.

It ends the launcher and its descendants as soon as the zlaunch of this run is gone: even after SIGKILL, no
process and no ssh connection remains. Over ssh, and where SIGTERM asks to save, the ranks are stopped through
a control file, and the launcher gets no signal. The reaper above it ends what is left if the guard is killed
too.
"""

import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from zlaunch.files import is_safe_word
from zlaunch.process import LauncherProcess, end_like, lifeline, outlive_parent, shield_from_sigterm
from zlaunch.rundir.control import COORDINATOR, write_stop
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.read import parse_record, read_rank_records
from zlaunch.rundir.record import JobRecord, RankRecord
from zlaunch.worker.grace import LAUNCHER_SECONDS
from zlaunch.worker.nsys import report_seconds


def main(run_dir: RunDir, argv: Sequence[str]) -> int:
    """Run a launcher and return what it returned."""
    job = parse_record(run_dir.job.read_bytes(), JobRecord)
    is_shielded = job.get("shielded", False)
    tell = None
    if job["over_ssh"]:
        tell = partial(write_stop, run_dir)
    if is_shielded:
        shield_from_sigterm()
        tell = tell or partial(write_stop, run_dir, by=COORDINATOR)
    if job["over_ssh"] and not is_safe_word(job.get("working_directory", "/")):
        os.chdir("/")  # DeepSpeed's runner goes to its directory on all hosts, and does not quote it
    grace = LAUNCHER_SECONDS + report_seconds(job.get("profile"))
    child = LauncherProcess(argv, os.environ, sys.stdout.buffer, grace, tell=tell)
    depends_on = lifeline(job["zlaunch_pid"])
    outlive_parent()  # not before: until now it dies with its parent, and the launcher with it
    returncode = child.wait(lambda: child.depend_on(depends_on))
    if returncode == 0 and child.stopped_by is None and (child.left_ranks or _was_stopped(run_dir, job)):
        return -signal.SIGKILL
    if child.was_overdue and child.stopped_by is not None:
        return -child.stopped_by  # a launcher that ignored it, as while it imports, was killed for that
    return returncode


def _was_stopped(run_dir: RunDir, job: JobRecord) -> bool:
    """Whether a rank was stopped, killed or not started.

    DeepSpeed's runner returns 0 if its node launcher was killed. A record of another host may come later, and
    one that is missing says nothing where no record can be written.
    """
    ranks = read_rank_records(run_dir, RankRecord).values()
    if any(rank.get("stopped_by") for rank in ranks):
        return True
    never_started = len(ranks) < len(job["ranks"]) and not job["over_ssh"]
    has_no_end = any("returncode" not in rank for rank in ranks)
    return run_dir.takes_records and (never_started or has_no_end)


if __name__ == "__main__":
    end_like(main(RunDir(Path(sys.argv[1])), sys.argv[2:]))
