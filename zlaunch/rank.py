"""What runs in each rank, around the user's script: `python -m zlaunch.rank RUN_DIR`.

A launcher starts this program once per rank. It starts the script unchanged as its only child,
writes what the script prints to the rank's log, passes signals on, and records how the script
ended: a launcher's own exit status does not tell (torchrun always says 1, deepspeed may say 0).
"""

import contextlib
import json
import os
import resource
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from zlaunch.errors import ExitStatus
from zlaunch.layout import RunLayout, write_whole
from zlaunch.process import Child, end_like, lifeline

GRACE_SECONDS = 5.0
"""How long the script may take to end after a signal was passed on to it."""


class _Record:
    """The rank's file in the run directory, always whole."""

    def __init__(self, file: Path, rank: int) -> None:
        self._file = file
        self._facts: dict[str, Any] = {"rank": rank, "host": socket.gethostname(), "started": time.time()}

    def add(self, **news: Any) -> None:
        """Write the record anew and swap it in, so that a reader never sees half of it."""
        self._facts |= news
        write_whole(self._file, json.dumps(self._facts) + "\n")


def main(run_dir: Path) -> int:
    """Run one rank of the job in a run directory and return what the script returned."""
    layout = RunLayout(run_dir)
    try:
        job = json.loads(layout.job.read_text("utf-8"))
    except OSError as error:
        where = f"{socket.gethostname()} cannot read {layout.job}: {error.strerror}"
        print(
            f"error: {where}\nhint: put the run directory where all hosts see it, with `--run-dir`",
            file=sys.stderr,
        )
        return ExitStatus.NO_INPUT
    rank = int(os.environ["RANK"])
    record = _Record(layout.rank_record(rank), rank)
    with layout.rank_log(rank).open("ab") as log:
        child = Child(
            [sys.executable, "-u", *job["script"]], {**os.environ, **job["environment"]}, log, GRACE_SECONDS
        )
    record.add(pid=child.pid)
    returncode = child.wait(partial(_heed, child, layout, lifeline(job["zlaunch_pid"])))
    for directory in job["swap_dirs"] if os.environ.get("LOCAL_RANK") == "0" else []:
        shutil.rmtree(directory, ignore_errors=True)
    peak_rss = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    record.add(ended=time.time(), returncode=returncode, stopped_by=child.stopped_by, peak_rss_bytes=peak_rss)
    return returncode


def _heed(child: Child, layout: RunLayout, depends_on: Sequence[psutil.Process]) -> None:
    """End the rank when its launcher or zlaunch is gone, or when the run directory says so."""
    child.depend_on(depends_on)
    with contextlib.suppress(FileNotFoundError):
        child.on_signal(int(layout.stop.read_text()), None)


if __name__ == "__main__":
    end_like(main(Path(sys.argv[1])))
