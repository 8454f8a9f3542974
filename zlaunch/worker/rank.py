"""What runs in each rank, around the user's script: `python -m zlaunch.worker.rank RUN_DIR`.

A launcher starts this program once per rank. It starts the script unchanged as its only child,
writes what the script prints to the rank's log, passes signals on, takes samples, and records how
the script ended: a launcher's own exit status does not tell (torchrun always says 1, deepspeed may
say 0). What runs inside the script's process is in `inside/`.
"""

import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from zlaunch.files import write_whole
from zlaunch.process import Child, end_like, lifeline
from zlaunch.rundir.control import read_stop, times_asked
from zlaunch.rundir.layout import STACKS_SIGNAL, RunDir
from zlaunch.worker.cleanup import buffer_of, delete
from zlaunch.worker.hook import hook_environment
from zlaunch.worker.hook.debug import debug_environment
from zlaunch.worker.sampling import GpuSampler, catches, machine_sample, oom_kills, rank_sample

GRACE_SECONDS = 5.0
"""How long the script may take to end after a signal was passed on to it."""

SAMPLE_SECONDS = 2.0


class _Record:
    """The rank's file in the run directory, always whole."""

    def __init__(self, file: Path, rank: int) -> None:
        self._file = file
        self._facts: dict[str, Any] = {
            "rank": rank,
            "local_rank": _local_rank(),
            "host": os.uname().nodename,
            "started": time.time(),
        }

    def add(self, **news: Any) -> None:
        """Write the record anew and swap it in, so that a reader never sees half of it.

        On a full disk it is written over the old one, whose block it has. Nothing here may end a rank.
        """
        self._facts |= news
        text = json.dumps(self._facts) + "\n"
        try:
            write_whole(self._file, text)
        except OSError:
            with contextlib.suppress(OSError), self._file.open("r+") as old:
                old.write(text)
                old.truncate()


class _Attendant:
    """What is done for a running script, now and then."""

    def __init__(self, child: Child, layout: RunDir, rank: int, job: Mapping[str, Any]) -> None:
        import psutil

        self._child = child
        self._layout = layout
        self._rank = rank
        self._depends_on = lifeline(job["zlaunch_pid"])
        self._over_ssh = bool(job["over_ssh"])
        self._process = psutil.Process(child.pid)
        self._sampled = 0.0
        self._answered = 0

    @cached_property
    def _gpu(self) -> GpuSampler:
        return GpuSampler(os.environ.get("CUDA_VISIBLE_DEVICES"), _local_rank())

    def __call__(self) -> None:
        """End the rank when its launcher or zlaunch is gone, or when the run directory says so; watch it."""
        self._child.depend_on(self._depends_on)
        if (number := read_stop(self._layout)) is not None:
            self._child.on_signal(number, None)
        if time.monotonic() - self._sampled > SAMPLE_SECONDS:
            self._sampled = time.monotonic()
            with contextlib.suppress(OSError):
                self._sample()
                self._hand_on()
            with contextlib.suppress(OSError, ValueError):
                self._show_stacks()

    def _sample(self) -> None:
        """Look at the process, and at the machine; at this alone where the process was too quick."""
        sample = rank_sample(self._process)
        if sample or not self._layout.rank_sample(self._rank).exists():
            machine = machine_sample(self._layout.root) if _local_rank() == 0 else None
            facts = {
                "time": time.time(),
                "host": os.uname().nodename,
                **sample,
                "gpu": self._gpu.sample(),
                "machine": machine,
            }
            write_whole(self._layout.rank_sample(self._rank), json.dumps(facts) + "\n")

    def _hand_on(self) -> None:
        """Let other hosts see what the script wrote: a network file system may keep it for half a minute."""
        files = (self._layout.rank_pulse(self._rank), self._layout.rank_stacks(self._rank))
        for file in files if self._over_ssh else ():
            with contextlib.suppress(FileNotFoundError), file.open("r+b") as written:
                os.fsync(written.fileno())

    def _show_stacks(self) -> None:
        """Have the script's process write its stacks, once for each time they are asked for."""
        import psutil

        asked = times_asked(self._layout)
        if asked > self._answered and catches(self._child.pid, STACKS_SIGNAL):
            self._answered = asked
            with contextlib.suppress(psutil.Error):
                self._process.send_signal(STACKS_SIGNAL)


def main(run_dir: Path) -> int:
    """Run one rank of the job in a run directory and return what the script returned."""
    layout = RunDir(run_dir)
    try:
        job = json.loads(layout.job.read_text("utf-8"))
    except OSError as error:
        from zlaunch.errors import ExitStatus

        where = f"{os.uname().nodename} cannot read {layout.job}: {error.strerror}"
        print(
            f"error: {where}\nhint: put the run directory where all hosts see it, with `--run-dir`",
            file=sys.stderr,
        )
        return ExitStatus.NO_INPUT
    rank = int(os.environ["RANK"])
    record = _Record(layout.rank_record(rank), rank)
    killed_before = oom_kills()
    environment = {**os.environ, **job["environment"]}
    with layout.rank_log(rank).open("ab") as log:
        environment |= {**hook_environment(run_dir, environment), **debug_environment(job.get("debug"))}
        child = Child([sys.executable, "-u", *_program(job)], environment, log, GRACE_SECONDS)
    buffer = buffer_of(rank, environment)
    record.add(pid=child.pid, buffer=str(buffer))
    returncode = child.wait(_Attendant(child, layout, rank, job))
    record.add(
        ended=time.time(),
        returncode=returncode,
        stopped_by=child.stopped_by,
        stopped_at=child.stopped_at,
        peak_rss_bytes=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        oom_kills=None if killed_before is None else (oom_kills() or 0) - killed_before,
    )
    delete(job["swap_dirs"] if job["over_ssh"] and _local_rank() == 0 else (), [buffer])
    return returncode


def _program(job: Mapping[str, Any]) -> list[str]:
    """Write the script or the module with its arguments, as Python takes them."""
    module, (file, *args) = job.get("module"), job["script"]
    return [*(["-m", module] if module else [file]), *args]


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


if __name__ == "__main__":
    end_like(main(Path(sys.argv[1])))
