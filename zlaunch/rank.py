"""What runs in each rank, around the user's script: `python -m zlaunch.rank RUN_DIR`.

A launcher starts this program once per rank. It starts the script unchanged as its only child,
writes what the script prints to the rank's log, passes signals on, and records how the script
ended: a launcher's own exit status does not tell (torchrun always says 1, deepspeed may say 0).
"""

import contextlib
import json
import os
import resource
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from zlaunch.errors import ExitStatus
from zlaunch.layout import RunLayout
from zlaunch.process import Child, started_at

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
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps(self._facts) + "\n")
        partial.replace(self._file)


def main(run_dir: Path) -> int:
    """Run one rank of the job in a run directory and return what the script returned."""
    layout = RunLayout(run_dir)
    try:
        job = json.loads(layout.job.read_text("utf-8"))
    except OSError as error:
        where = f"{socket.gethostname()} cannot read {layout.job}: {error.strerror}"
        print(f"error: {where}\nhint: put the run directory where all hosts see it, with `--run-dir`", file=sys.stderr)
        return ExitStatus.NO_INPUT
    rank = int(os.environ["RANK"])
    record = _Record(layout.rank_record(rank), rank)
    with layout.rank_log(rank).open("ab") as log:
        child = Child([sys.executable, "-u", *job["script"]], {**os.environ, **job["environment"]}, log, GRACE_SECONDS)
    record.add(pid=child.pid)
    returncode = child.wait(partial(_end_without_launcher, child, job["zlaunch"], os.getppid()))
    record.add(ended=time.time(), returncode=returncode, stopped_by=child.stopped_by)
    return returncode


def _end_without_launcher(child: Child, zlaunch: dict[str, Any], parent: int) -> None:
    """End the rank when the launcher that started it, or zlaunch itself, is gone."""
    is_here = zlaunch["host"] == socket.gethostname()
    if os.getppid() != parent or (is_here and started_at(zlaunch["pid"]) != zlaunch["started"]):
        child.on_signal(signal.SIGTERM, None)


def end_like(returncode: int) -> None:
    """End this process as the script ended, by the same signal if there was one, without a core dump."""
    if returncode < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):
            signal.signal(-returncode, signal.SIG_DFL)
        os.kill(os.getpid(), -returncode)
    sys.exit(returncode)


if __name__ == "__main__":
    end_like(main(Path(sys.argv[1])))
