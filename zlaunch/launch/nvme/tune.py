"""Find the fastest settings of `aio` for a drive, in bounded time and space."""

import json
import os
import select
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from zlaunch.dsconfig.native_ops import OPS
from zlaunch.errors import InputMissing, Unavailable
from zlaunch.hosts.machine.interpreter import Interpreter, check_packages
from zlaunch.hosts.machine.op_cache import VARIABLE, OpCache, find_op_cache
from zlaunch.hosts.machine.probe import disk_of
from zlaunch.hosts.machine.resources import Machine
from zlaunch.launch.nvme.measure import FINAL_ROUNDS, FINALISTS, MARK, round_trip, settings
from zlaunch.launch.op_build import WantedOps, build_wanted
from zlaunch.launch.reporter import BuildReporter
from zlaunch.process import Stopped, ours, signals_as_exceptions, start_with_pipes
from zlaunch.rundir.layout import RunDir
from zlaunch.units import memory

PREFIX = ".zlaunch-nvme-"
SPARE_BYTES = 1 << 30
"""Stays free on the drive."""
FILES = 2
"""One is read, the other written."""
_SLOWEST_SECONDS = 120.0
"""Over the time limit, for the last measurement and the start of torch."""


@dataclass(frozen=True)
class Measurement:
    """The speed of one setting, in GB/s."""

    setting: Mapping[str, Any]
    read: float
    write: float

    @property
    def round_trip(self) -> float:
        """Seconds to read and write a GB."""
        return round_trip({"read": self.read, "write": self.write})

    @property
    def aio(self) -> dict[str, object]:
        """The section of a ds_config; what `ds_nvme_tune` prints, DeepSpeed does not read."""
        return {
            "block_size": self.setting["block_size"],
            "queue_depth": self.setting["queue_depth"],
            "intra_op_parallelism": self.setting["io_parallel"],
            "single_submit": self.setting["single_submit"],
            "overlap_events": not self.setting["sequential_requests"],
        }


@dataclass(frozen=True)
class Tuning:
    """What was measured; the best first."""

    measured: tuple[Measurement, ...]
    num_settings: int
    """Of which all were tried, if the time was enough."""

    @property
    def best(self) -> Measurement:
        """The setting that reads and writes the same amount fastest."""
        return self.measured[0]


@dataclass(frozen=True)
class TuneRequest:
    """What to measure, and how long at most."""

    folder: Path
    num_bytes: int
    seconds: float
    python: Interpreter
    machine: Machine


def check_drive(request: TuneRequest) -> None:
    """Raise InputMissing without such a directory, Unavailable if it is too small or cannot be written."""
    if request.folder.exists() and not request.folder.is_dir():
        raise InputMissing(f"`{request.folder}` is not a directory", "name a directory on the drive")
    if not request.folder.is_dir():
        raise InputMissing(f"there is no directory `{request.folder}`", f"`mkdir -p {request.folder}`")
    if not os.access(request.folder, os.W_OK | os.X_OK):
        raise Unavailable(f"`{request.folder}` cannot be written", "choose another directory on the drive")
    disk, needed = disk_of(request.folder), FILES * request.num_bytes + SPARE_BYTES
    if disk is not None and disk.free_bytes < needed:
        left = (disk.free_bytes - SPARE_BYTES) // FILES >> 20
        hint = f"`--size {left}M` fits" if left >= 16 else "free some space, or choose another drive"
        text = f"`{request.folder}` has {memory(disk.free_bytes)} free, but {memory(needed)} are needed"
        raise Unavailable(f"{text}: the test files, and {memory(SPARE_BYTES)} to spare", hint)
    check_packages(request.python, ("torch", "deepspeed"))


def tune(
    request: TuneRequest, reporter: BuildReporter, told: Callable[[int, Measurement | None], None]
) -> Tuning:
    """Build `async_io` if needed, measure, and delete all files, also if a signal ends it.

    `told` gets the number of measurements and the best so far. Raises Stopped for a signal, Unavailable if
    the drive cannot be measured.
    """
    with signals_as_exceptions(), _folder_on(request.folder) as folder:
        environment = _environment(request, reporter, folder)
        return _measure(request, folder, environment, told)


@contextmanager
def _folder_on(drive: Path) -> Iterator[Path]:
    with TemporaryDirectory(prefix=PREFIX, dir=drive, ignore_cleanup_errors=True) as name:
        yield Path(name)


def _environment(request: TuneRequest, reporter: BuildReporter, folder: Path) -> dict[str, str]:
    """The environment of a rank, in which `async_io` is compiled."""
    path = os.pathsep.join([*request.python.not_on_path(os.environ), os.environ.get("PATH", os.defpath)])
    cpu = {} if request.machine.gpus else {"DS_ACCELERATOR": "cpu"}
    environment = {**os.environ, **cpu, "PATH": path}
    cache = find_op_cache(request.python, request.machine, environment)
    environment[VARIABLE] = str(cache.folder)
    logs = RunDir(folder / "build")
    logs.logs.mkdir(parents=True)
    stopped_by = _build(request, cache, environment, reporter, logs)
    if stopped_by is not None:
        raise Stopped(stopped_by)
    shutil.rmtree(logs.root)
    return environment


def _build(
    request: TuneRequest,
    cache: OpCache,
    environment: Mapping[str, str],
    reporter: BuildReporter,
    logs: RunDir,
) -> Any:
    wanted = WantedOps((OPS["async_io"],), request.python, cache, logs)
    return build_wanted(wanted, environment, reporter, if_killed=())


def _measure(
    request: TuneRequest,
    folder: Path,
    environment: Mapping[str, str],
    told: Callable[[int, Measurement | None], None],
) -> Tuning:
    found: dict[str, list[dict[str, Any]]] = {}
    words = [str(folder), str(request.num_bytes), str(request.seconds)]
    argv = ours("zlaunch.launch.nvme.measure", *words, python=request.python.executable)
    log = folder.parent / f"{folder.name}.log"
    shell = ["sh", "-c", 'exec "$@" 2>"$0"', str(log), *argv]
    told(0, None)
    try:
        for line in _lines(shell, environment, request.seconds + _SLOWEST_SECONDS):
            one = json.loads(line.removeprefix(MARK))
            found.setdefault(json.dumps(one["setting"]), []).append(one)
            told(sum(map(len, found.values())), _best(found)[0])
        if not found:
            raise _failure(log)
    finally:
        with suppress(OSError):
            log.unlink()
    return Tuning(tuple(_best(found)), len(settings()))


def _best(found: Mapping[str, list[dict[str, Any]]]) -> list[Measurement]:
    """The settings by the median of their measurements; those that were measured again come first."""
    measured = [
        (
            -len(rounds),
            Measurement(
                rounds[0]["setting"],
                statistics.median([one["read"] for one in rounds]),
                statistics.median([one["write"] for one in rounds]),
            ),
        )
        for rounds in found.values()
    ]
    most = min(rounds for rounds, _ in measured)
    is_final = most <= -(FINAL_ROUNDS + 1)
    measured.sort(key=lambda one: (one[0] if is_final else 0, one[1].round_trip))
    return [one for _, one in measured]


def _lines(argv: list[str], environment: Mapping[str, str], seconds: float) -> Iterator[str]:
    """Read the measurements as they come; the program is killed in the end."""
    process, deadline, left = start_with_pipes(argv, environment), time.monotonic() + seconds, b""
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        while (rest := deadline - time.monotonic()) > 0:
            if not select.select([process.stdout], [], [], min(rest, 1.0))[0]:
                continue
            if not (chunk := os.read(process.stdout.fileno(), 1 << 16)):
                return
            *lines, left = (left + chunk).split(b"\n")
            yield from (line.decode() for line in lines if line.startswith(MARK.encode()))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stdin.close()


def _failure(log: Path) -> Unavailable:
    """Say why nothing was measured, in DeepSpeed's own words."""
    text = log.read_text("utf-8", "replace") if log.exists() else ""
    last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")
    hint = "use a directory on a local drive: the file system must support O_DIRECT, which tmpfs may not"
    if "lock" in last and "memory" in last.lower():
        hint = "raise the limit of locked memory: `ulimit -l unlimited`"
    return Unavailable(f"DeepSpeed cannot measure this directory: {last}", hint)


MOST_MEASUREMENTS = len(settings()) + FINALISTS * FINAL_ROUNDS
"""If the time is enough."""
