"""Looking back at runs: find a run directory, read what is in it, see whether its zlaunch works, stop it."""

import contextlib
import io
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil

from zlaunch.diagnosis.collect import collect_evidence
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.errors import InputMissing, Unavailable, WrongUsage
from zlaunch.process import is_alive, may_signal
from zlaunch.rundir.control import COMMAND, write_stop
from zlaunch.rundir.layout import RUNS, RunDir
from zlaunch.rundir.record import RunFiles, RunRecord, State, is_same_process, number, record_of, text
from zlaunch.runs.verdict import rediagnose
from zlaunch.units import whole

LATEST = "latest"
POLL_SECONDS = 0.2
LOOK_SECONDS = 1.0
"""A whole look reads every file of every rank."""
_BLOCK_BYTES = 1 << 16


def all_runs(directory: Path | None) -> list[Path]:
    """List the run directories in a directory, the newest first; none if nothing was ever run."""
    folder = RUNS if directory is None else directory
    if not folder.is_dir():
        if directory is not None:
            raise InputMissing(f"there is no directory `{directory}`")
        return []
    roots = [one for one in folder.iterdir() if not one.name.startswith(".") and _is_of_a_run(one)]
    return sorted(roots, key=lambda root: (_started(root), root.name), reverse=True)


def find_run(name: str, directory: Path | None) -> Path:
    """Find a run by its name, the beginning of it, its path, or as the latest."""
    named = Path(name)
    if "/" in name or (named.is_dir() and RunDir(named).job.exists()):
        if not named.is_dir():
            raise InputMissing(f"there is no run directory `{name}`")
        return named.absolute()
    folder, runs = RUNS if directory is None else directory, all_runs(directory)
    if name == LATEST and runs:
        return runs[0].absolute()
    matching = [root for root in runs if root.name == name] or [
        root for root in runs if name and root.name.startswith(name)
    ]
    if not matching:
        what = "no run" if name == LATEST else f"no run `{name}`"
        raise InputMissing(f"there is {what} in `{folder}`", "see `zlaunch runs list`, or name `--runs-dir`")
    if len(matching) > 1:
        names = ", ".join(f"`{root.name}`" for root in matching[:4])
        rest = f" and {len(matching) - 4} more" if len(matching) > 4 else ""
        raise WrongUsage(f"`{name}` may be {names}{rest}", "write more of the name")
    return matching[0].absolute()


def load_run(root: Path) -> RunRecord:
    """Read a run directory and judge the run."""
    record = _judged(root)
    if record.state.is_over and not record.found.ending:
        record = _judged(root)  # it may have ended between the two looks
    verdict = _found_again(record)
    if verdict is None:
        return record
    return replace(record, found=replace(record.found, verdict=asdict(verdict)), cause=verdict.cause)


def _judged(root: Path) -> RunRecord:
    found = read_run_files(root)
    return record_of(found, is_running(found.job), time.time())


def _found_again(record: RunRecord) -> Verdict | None:
    """Find the verdict of a run that is over and left none; None where nothing tells."""
    ending, state = record.found.ending, record.state
    if text(record.found.told, "cause") or not state.is_over or state in (State.FINISHED, State.BROKEN):
        return None
    returncode = whole(ending.get("returncode")) or 0
    stopped_by = -returncode if state is State.STOPPED and returncode < 0 else None
    with contextlib.suppress(ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return rediagnose(collect_evidence(RunDir(record.found.root), returncode, stopped_by), state)
    return None  # the files hold what no run writes


def read_run_files(root: Path) -> RunFiles:
    """Read the files of a run directory; what is missing or broken becomes a trouble, never an error."""
    layout, troubles = RunDir(root), list[str]()
    files = {
        name: _members(file, troubles, needed=name == "job")
        for name, file in {
            "job": layout.job,
            "ending": layout.ending,
            "environment": layout.environment,
            "forecast": layout.forecast,
            "config": layout.ds_config,
            "provenance": layout.provenance,
        }.items()
    }
    return RunFiles(
        root=root,
        changed=_last_written(layout),
        **files,
        last_metrics=_parse(b"".join(_last_lines(layout.metrics, 1))),
        ranks=_of_ranks(layout, "", troubles),
        pulses=_of_ranks(layout, ".pulse", troubles),
        samples=_of_ranks(layout, ".sample", troubles),
        errors=_of_ranks(layout, ".error", troubles),
        troubles=tuple(troubles),
    )


def is_running(job: Mapping[str, Any]) -> bool | None:
    """Whether the zlaunch of a run works; None if it runs on another host, or nobody knows where."""
    host = text(job, "host")
    if host is not None and host != socket.gethostname():
        return None
    return zlaunch_process(job) is not None


def zlaunch_process(job: Mapping[str, Any]) -> psutil.Process | None:
    """Find the zlaunch process of a run on this host; None if it is gone, or its id is another's now."""
    pid = whole(job.get("zlaunch_pid"))
    if pid is None or pid <= 0:
        return None
    with contextlib.suppress(psutil.Error, ValueError, OverflowError):
        process = psutil.Process(pid)
        if is_same_process(job, process.create_time()) and is_alive(process):
            return process
    return None


def stop_run(record: RunRecord) -> str:
    """Tell a running run to stop, and say whom; the run writes down how it ended."""
    process = zlaunch_process(record.found.job) if is_running(record.found.job) else None
    layout = RunDir(record.found.root)
    stop = os.path.relpath(layout.stop)
    if process is not None and not may_signal(process.pid):  # nor may its ranks read of it
        raise Unavailable(f"zlaunch (process {process.pid}) belongs to `{process.username()}`")
    try:
        write_stop(layout, signal.SIGTERM, COMMAND)
    except OSError as error:
        if process is None:
            raise Unavailable(f"`{stop}` cannot be written: {error.strerror}") from None
    if process is None:
        return f"its ranks, through {stop}"
    with contextlib.suppress(psutil.Error):
        process.terminate()
    return f"zlaunch (process {process.pid})"


def wait_until_over(root: Path, seconds: float) -> RunRecord:
    """Look at a run until it is over, but not for longer than some seconds."""
    deadline, ended = time.monotonic() + seconds, may_have_ended(root)
    while time.monotonic() < deadline and not (ended() and load_run(root).state.is_over):
        time.sleep(POLL_SECONDS)
    return load_run(root)


def may_have_ended(root: Path) -> Callable[[], bool]:
    """Make a question that is cheap to ask often: whether a whole look at a run is due."""
    ending, last = RunDir(root).ending, time.monotonic()

    def is_due() -> bool:
        nonlocal last
        if not ending.exists() and time.monotonic() < last + LOOK_SECONDS:
            return False
        last = time.monotonic()
        return True

    return is_due


def is_done_with(root: Path) -> Callable[[], bool]:
    """Make a question for who follows a run: whether nothing more is to be seen of it from here."""
    is_due = may_have_ended(root)
    return lambda: is_due() and load_run(root).state is not State.RUNNING


def log_of(root: Path, rank: int | None, launcher: bool) -> Path:
    """Find a log of a run; raise InputMissing naming those that are there."""
    layout = RunDir(root)
    log = layout.launcher_log if launcher else layout.rank_log(rank or 0)
    if not log.exists():
        there = ", ".join(sorted(file.name for file in layout.logs.glob("*.log"))) or "none"
        raise InputMissing(
            f"{root.name} has no log `{log.name}`; there: {there}", "name one by `--rank N` or `--launcher`"
        )
    return log


def read_log(log: Path, tail: int | None) -> bytes:
    """Read a log, or its last lines."""
    return log.read_bytes() if tail is None else b"".join(_last_lines(log, tail))


def follow(log: Path, offset: int, is_over: Callable[[], bool]) -> Iterator[bytes]:
    """Yield what is added to a log beyond an offset, until its run is over."""
    while True:
        over = is_over()
        with log.open("rb") as file:
            file.seek(offset)
            while chunk := file.read(_BLOCK_BYTES):
                offset += len(chunk)
                yield chunk
        if over:
            return
        time.sleep(POLL_SECONDS)


def _is_of_a_run(root: Path) -> bool:
    """Whether a directory is one of a run, be it broken; folders that hold other things are not."""
    layout = RunDir(root)
    with contextlib.suppress(OSError):
        files = (layout.job, layout.ending, layout.ds_config, layout.logs, layout.ranks)
        known = {file.name for file in files}
        names = {entry.name for entry in os.scandir(root)}
        return not names or bool(names & known)
    return root.is_dir()


def _started(root: Path) -> float:
    """Say when a run started; a directory that does not tell counts by its own time."""
    started = number(_members(RunDir(root).job, [], needed=False), "started")
    if started is not None:
        return started
    with contextlib.suppress(OSError):
        return root.stat().st_mtime
    return 0.0


def _of_ranks(layout: RunDir, kind: str, troubles: list[str]) -> dict[int, Mapping[str, Any]]:
    """Read one kind of the ranks' files: rank → members."""
    found: dict[int, Mapping[str, Any]] = {}
    with contextlib.suppress(OSError):
        for file in sorted(layout.ranks.glob(f"rank-*{kind}.json")):
            number_of_rank = file.name.removeprefix("rank-").removesuffix(f"{kind}.json")
            if number_of_rank.isdecimal() and (members := _members(file, troubles, needed=False)):
                found[int(number_of_rank)] = members
    return dict(sorted(found.items()))


def _members(file: Path, troubles: list[str], *, needed: bool) -> Mapping[str, Any]:
    """Read an object from a file."""
    try:
        members = _parse(file.read_bytes())
    except FileNotFoundError:
        if needed:
            troubles.append(f"`{file.name}` is not there")
        return {}
    except OSError as error:
        troubles.append(f"`{file.name}` cannot be read: {error.strerror}")
        return {}
    if not members:
        troubles.append(f"`{file.name}` is broken or half-written")
    return members


def _parse(data: bytes) -> Mapping[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        members = json.loads(data)
        if isinstance(members, dict):
            return members
    return {}


def _last_written(layout: RunDir) -> float:
    times = [0.0]
    for folder in (layout.root, layout.logs, layout.ranks):
        with contextlib.suppress(OSError):
            times += [entry.stat().st_mtime for entry in os.scandir(folder) if entry.is_file()]
    return max(times)


def _last_lines(file: Path, count: int) -> list[bytes]:
    """Read the last lines of a file, however long it is; none if it cannot be read."""
    data = b""
    try:
        with file.open("rb") as log:
            offset = log.seek(0, os.SEEK_END)
            while offset > 0 and data.count(b"\n") <= count:
                step = min(_BLOCK_BYTES, offset)
                offset -= step
                log.seek(offset)
                data = log.read(step) + data
    except OSError:
        return []
    return io.BytesIO(data).readlines()[-count:] if count else []
