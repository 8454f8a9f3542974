"""The rank program around the user's script: `zlaunch.worker.rank RUN_DIR`.

A launcher starts it once per rank, in the Python of zlaunch, which may be another one than the script's. It
starts the script unchanged as its only child, writes its output to the rank's log, passes signals on, takes
samples, and records how the script ended. The launcher's exit status does not say that: torchrun always
returns 1, deepspeed may return 0. `hook/` runs inside the script's process.
"""

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO

from zlaunch.files import end_of, from_safe_word, overwrite, print_line
from zlaunch.process import (
    SAFE_PATH,
    Child,
    end_like,
    ignore_request_to_save,
    is_told_by_parent,
    lifeline,
    shield_from_sigterm,
)
from zlaunch.rundir.control import read_stop, times_asked
from zlaunch.rundir.layout import STACKS_SIGNAL, RunDir
from zlaunch.rundir.printed_records import printed_line
from zlaunch.rundir.read import parse_record
from zlaunch.rundir.record import JobRecord, NodePlanRecord, ProfileRecord, RankRecord, SampleRecord
from zlaunch.rundir.write import record_text, write_record
from zlaunch.worker.cleanup import buffer_of, delete
from zlaunch.worker.grace import SCRIPT_SECONDS
from zlaunch.worker.hook import hook_environment
from zlaunch.worker.hook.debug import debug_environment
from zlaunch.worker.hook.step_profiler import VARIABLE as PROFILE
from zlaunch.worker.hook.step_profiler import asked_of
from zlaunch.worker.nsys import REPORT_SECONDS, ScriptBelow, profiles, words_before
from zlaunch.worker.sampling import GpuSampler, catches, is_compiling, machine_sample, oom_kills, rank_sample

SAMPLE_SECONDS = 2.0

PRINTED_LOG_BYTES = 8 * 1024
"""How much of the end of its log a rank prints if the run directory is gone."""

QUIET_SECONDS = 4.0
"""A script that sent no heartbeat for this long may be compiling."""


class _RecordFile:
    """The record of a rank, always whole."""

    def __init__(self, file: Path, rank: int) -> None:
        self._file = file
        self._record = RankRecord(
            rank=rank, local_rank=_local_rank(), host=os.uname().nodename, started=time.time()
        )

    def add(self, news: RankRecord) -> RankRecord | None:
        """Replace the file; return the record if it could not be written, which must not end the rank.

        On a full disk, it is overwritten in place.
        """
        self._record.update(news)
        try:
            write_record(self._file, self._record, indent=None)
        except OSError:
            try:
                overwrite(self._file, record_text(self._record, indent=None).encode())
            except OSError:
                return self._record
        return None


class _Attendant:
    def __init__(self, child: Child, run_dir: RunDir, rank: int, job: JobRecord) -> None:
        import psutil

        self._child = child
        self._run_dir = run_dir
        self._rank = rank
        self._depends_on = lifeline(job["zlaunch_pid"])
        self._spans_hosts = job["over_ssh"]
        self._process = psutil.Process(child.pid)
        """The script, or nsys until that has started it."""
        self._sampled = 0.0
        self._answered = 0
        self._is_stopped = False
        self.is_signalled = False
        """Whether this program got a signal to stop before it saw any other reason."""
        self.has_compiled = False
        """Whether a compiler was seen below the script."""

    @cached_property
    def _gpu(self) -> GpuSampler:
        return GpuSampler(os.environ.get("CUDA_VISIBLE_DEVICES"), _local_rank())

    def __call__(self) -> None:
        """End the rank when its launcher or zlaunch is gone, or on request; take a sample now and then."""
        if self._child.stopped_by is not None and not self._is_stopped:
            self.is_signalled = read_stop(self._run_dir) is None
        self._end_if_told()
        self._is_stopped = self._child.stopped_by is not None
        if time.monotonic() - self._sampled > SAMPLE_SECONDS:
            self._sampled = time.monotonic()
            self._find_script()
            with contextlib.suppress(OSError):
                self._sample()
                self._flush()
            with contextlib.suppress(OSError, ValueError):
                self._show_stacks()

    def _find_script(self) -> None:
        import psutil

        if isinstance(self._child, ScriptBelow) and self._process.pid == self._child.pid:
            with contextlib.suppress(psutil.Error):
                self._process = psutil.Process(self._child.script or self._child.pid)

    def _end_if_told(self) -> None:
        self._child.depend_on(self._depends_on)
        if is_told_by_parent():
            self._child.on_signal(signal.SIGTERM, None)
        if (number := read_stop(self._run_dir)) is not None:
            self._child.on_signal(number, None)

    def _sample(self) -> None:
        """Sample the process and the machine; only the machine if the process has ended already."""
        process = rank_sample(self._process)
        compiling = self._is_quiet() and is_compiling(self._process)
        self.has_compiled |= compiling
        if process or not self._run_dir.rank_sample(self._rank).exists():
            machine = None
            if _local_rank() == 0:
                machine = machine_sample(self._run_dir.root)
            sample: SampleRecord = {
                "time": time.time(),
                "host": os.uname().nodename,
                **process,
                "compiling": compiling,
                "gpu": self._gpu.sample(),
                "machine": machine,
            }
            write_record(self._run_dir.rank_sample(self._rank), sample, indent=None)

    def _is_quiet(self) -> bool:
        """Whether the script sent no heartbeat for a while: all processes are looked through only then."""
        with contextlib.suppress(OSError):
            return time.time() - self._run_dir.rank_heartbeat(self._rank).stat().st_mtime > QUIET_SECONDS
        return True

    def _flush(self) -> None:
        """Make files of the script visible on other hosts: a network file system may delay that by 30 s."""
        if not self._spans_hosts:
            return
        files = [self._run_dir.rank_heartbeat(self._rank), self._run_dir.rank_stacks(self._rank)]
        if self._rank == 0:
            files.append(self._run_dir.steps)
        for file in files:
            with contextlib.suppress(FileNotFoundError), file.open("r+b") as written:
                os.fsync(written.fileno())

    def _show_stacks(self) -> None:
        """Have the script's process write its stacks, once for each request."""
        import psutil

        asked = times_asked(self._run_dir)
        if asked > self._answered and catches(self._process.pid, STACKS_SIGNAL):
            self._answered = asked
            with contextlib.suppress(psutil.Error):
                self._process.send_signal(STACKS_SIGNAL)


def main(run_dir: RunDir) -> int:
    """Run one rank of the job in a run directory and return what the script returned."""
    try:
        job = parse_record(run_dir.job.read_bytes(), JobRecord)
        if job["over_ssh"]:  # DeepSpeed's runner starts it elsewhere, because it does not quote directories
            os.chdir(job["working_directory"])
    except OSError as error:
        from zlaunch.errors import ExitStatus

        where = f"{os.uname().nodename} cannot read {error.filename}: {error.strerror}"
        hint = "use a run directory that all hosts share: `--run-dir DIR`"
        print(f"error: {where}\nhint: {hint}", file=sys.stderr)
        return ExitStatus.NO_INPUT
    ignore_request_to_save()
    if job.get("shielded"):
        shield_from_sigterm()
    os.environ.update(_of_mpi(os.environ, job.get("rendezvous", [])))
    os.environ.update(_host_number(os.environ))
    rank = int(os.environ["RANK"])
    record = _RecordFile(run_dir.rank_record(rank), rank)
    inherited = {name: value for name, value in os.environ.items() if SAFE_PATH.get(name) != value}
    host = _host_of(job, rank)
    environment = {**inherited, **job["environment"], **host.get("environment", {})}
    log = run_dir.rank_log(rank).open("a+b")  # stays open: its end is read if the directory is gone
    environment |= {**hook_environment(run_dir.root, environment), **debug_environment(job.get("debug"))}
    environment |= _profiled(job.get("profile"), rank)
    buffer = buffer_of(rank, environment)
    # Before the script starts, which may fill the disk: what is there can be overwritten even then.
    record.add({"buffer": str(buffer)})
    try:
        child = _start_script(job, _script_command(job, host.get("python")), environment, log, run_dir)
    except OSError as error:
        log.write(f"zlaunch could not start the script: {type(error).__name__}: {error}\n".encode())
        log.flush()
        _tell(record, {"ended": time.time(), "returncode": 1, "stopped_by": None}, log)
        return 1
    killed_before = oom_kills()
    record.add({"pid": child.pid})
    attendant = _Attendant(child, run_dir, rank, job)
    returncode = child.wait(attendant)
    largest: int | None = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    # The largest process may be a compiler, or one of nsys; the samples are of the script alone.
    if attendant.has_compiled or isinstance(child, ScriptBelow):
        largest = None
    killed = oom_kills().since(killed_before)
    ending: RankRecord = {
        "ended": time.time(),
        "returncode": returncode,
        "stopped_by": child.stopped_by,
        "stopped_at": child.stopped_at,
        "peak_rss_bytes": largest,
        "signalled": attendant.is_signalled,
        "group_oom_kills": killed.group,
        "machine_oom_kills": killed.machine,
    }
    delete([], [buffer])
    if job["over_ssh"] and _local_rank() == 0:
        delete(job["swap_dirs"], [])
    _tell(record, ending, log)
    return returncode


def _tell(record: _RecordFile, ending: RankRecord, log: IO[bytes]) -> None:
    """Record the end; print it if that fails, with the end of the log of a script that failed."""
    if (unwritten := record.add(ending)) is not None:
        words = ""
        if ending["returncode"] != 0:
            words = end_of(log, PRINTED_LOG_BYTES)
        print_line(printed_line(unwritten, words))  # the launcher's log may be on the same full disk


def _start_script(
    job: JobRecord, words: list[str], environment: Mapping[str, str], log: IO[bytes], run_dir: RunDir
) -> Child:
    rank = int(environment["RANK"])
    nsys = words_before(job.get("profile"), rank, run_dir.rank_nsys(rank))
    if not nsys:
        return Child(words, environment, log, SCRIPT_SECONDS)
    import psutil  # noqa: F401 - a signal looks for the script with it, and may come at any time

    child = ScriptBelow([*nsys, *words], environment, log, SCRIPT_SECONDS + REPORT_SECONDS)
    child.words = words
    return child


def _profiled(profile: ProfileRecord | None, rank: int) -> dict[str, str]:
    """What tells the hook which steps it profiles."""
    if profile is None or not profiles(profile, rank):
        return {}
    return {PROFILE: asked_of(profile)}


def _of_mpi(environ: Mapping[str, str], rendezvous: Sequence[str]) -> dict[str, str]:
    """What `mpirun` tells a rank, under the names that torch reads; nothing where another launcher has."""
    names = {"RANK": "RANK", "LOCAL_RANK": "LOCAL_RANK", "WORLD_SIZE": "SIZE"}
    told = {name: environ.get(f"OMPI_COMM_WORLD_{own}") for name, own in names.items()}
    if "RANK" in environ or None in told.values() or len(rendezvous) != 2:
        return {}
    found = {name: str(value) for name, value in told.items()}
    return {**found, "MASTER_ADDR": rendezvous[0], "MASTER_PORT": rendezvous[1]}


def _host_number(environ: Mapping[str, str]) -> dict[str, str]:
    """What `torchrun` tells a rank of its host, under the names that DeepSpeed's checkpoint writers read."""
    names = {"CROSS_SIZE": "GROUP_WORLD_SIZE", "CROSS_RANK": "GROUP_RANK"}
    return {name: environ[own] for name, own in names.items() if own in environ and name not in environ}


def _script_command(job: JobRecord, own: str | None) -> list[str]:
    file, *args = job["script"]
    words = [own or job.get("python", sys.executable), "-u", file]
    if module := job.get("module"):
        words[2:] = ["-m", module]
    if job.get("passes_local_rank"):
        words.append(f"{job.get('local_rank_flag') or '--local_rank'}={_local_rank()}")
    return [*words, *args]


def _host_of(job: JobRecord, rank: int) -> NodePlanRecord:
    """What is planned for the host of a rank; empty if zlaunch does not start each host."""
    nodes = job.get("nodes", [])
    return next((node for node in nodes if rank in node.get("ranks", ())), NodePlanRecord())


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


if __name__ == "__main__":
    end_like(main(RunDir(from_safe_word(sys.argv[1]))))
