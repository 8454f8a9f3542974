"""The fastest settings of `aio` for a drive, by DeepSpeed's own `ds_nvme_tune`: find and write them."""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from zlaunch.console import StepReporter
from zlaunch.dsconfig.native_ops import OPS
from zlaunch.dsconfig.read import read
from zlaunch.dsconfig.text.document import Document
from zlaunch.dsconfig.text.edit import add_member, fix_text
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import Finding, Fix, FixKind, InputMissing, Refused, Unavailable
from zlaunch.files import write_back
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.interpreter import Interpreter, check_packages
from zlaunch.hosts.machine.probe import disk_of
from zlaunch.hosts.machine.resources import Machine
from zlaunch.launch.op_build import environment_with
from zlaunch.process import Foreground, Stopped, signals_as_exceptions
from zlaunch.units import memory

AIO: Final = "aio"
PROGRAM: Final = "ds_nvme_tune"
PREFIX: Final = ".zlaunch-nvme-"
SPARE_BYTES: Final = 1 << 30
"""Stays free on the drive."""
FILES: Final = 2
"""One is read, the other written."""
NUM_MEASUREMENTS: Final = 128
"""Settings that the program tries (`deepspeed/nvme/perf_run_sweep.py`, `DEFAULT_SWEEP_CONFIG`), twice: it
reads with each, then it writes with each."""

_LOGS: Final = "logs"
_OUTPUT: Final = "output"
_GRACE_SECONDS: Final = 5.0
_RESULT: Final = re.compile(
    r"^Best performance \(GB/sec\): read = *(?P<read>[\d.]+), write = *(?P<write>[\d.]+)\s+(?P<section>\{.*)",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Tuning:
    """The fastest settings of a drive, and their speeds in GB/s."""

    aio: Mapping[str, object]
    """The section of a ds_config."""
    read: float
    write: float


@dataclass(frozen=True)
class TuneRequest:
    """What to measure."""

    folder: Path
    num_bytes: int
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
        hint = "free some space, or choose another drive"
        if left >= 16:
            hint = f"`--size {left}M` fits"
        text = f"`{request.folder}` has {memory(disk.free_bytes)} free, but {memory(needed)} are needed"
        raise Unavailable(f"{text}: the test files, and {memory(SPARE_BYTES)} to spare", hint)
    check_packages(request.python, ("torch", "deepspeed"))


def tune(request: TuneRequest, reporter: StepReporter, measured: Callable[[int], None]) -> Tuning:
    """Build `async_io` if needed, measure, and delete all files, also if a signal ends it.

    `measured` gets the number of measurements so far. Raises Stopped for a signal, Unavailable if the drive
    cannot be measured.
    """
    with (
        signals_as_exceptions(),
        TemporaryDirectory(prefix=PREFIX, dir=request.folder, ignore_cleanup_errors=True) as name,
    ):
        folder = Path(name)
        ops = (OPS["async_io"],)
        environment = environment_with(ops, request.python, request.machine, folder, reporter)
        return _sweep(request, folder, environment, measured)


def _sweep(
    request: TuneRequest, folder: Path, environment: Mapping[str, str], measured: Callable[[int], None]
) -> Tuning:
    program = shutil.which(PROGRAM, path=environment["PATH"])
    if program is None:
        raise Unavailable(
            f"there is no `{PROGRAM}` in {request.python.scripts}, nor on PATH",
            "`pip install deepspeed` in that environment installs it",
        )
    logs, output = folder / _LOGS, folder / _OUTPUT
    with output.open("wb") as file:
        argv = in_folder(folder, request.python, program, request.num_bytes)
        child = Foreground(argv, environment, file, _GRACE_SECONDS, if_killed=())
    returncode = child.wait(lambda: measured(len([*logs.glob("*/*")])))
    if child.stopped_by is not None:
        raise Stopped(child.stopped_by)
    tuning = read_result(output.read_text("utf-8", "replace"))
    if returncode or tuning is None:
        raise _tuning_failure([output, *logs.glob("*/*")])
    return tuning


def in_folder(folder: Path, python: Interpreter, program: str, num_bytes: int) -> list[str]:
    """The command line of DeepSpeed's program, in a directory: it splits paths at spaces."""
    words = ["--nvme_dir", ".", "--io_size", str(num_bytes), "--log_dir", _LOGS]
    return ["sh", "-c", 'cd "$0" && exec "$@"', str(folder), python.executable, program, *words]


def read_result(output: str) -> Tuning | None:
    """Read what DeepSpeed's program printed; None without a result.

    Its section has a key that DeepSpeed does not read, and booleans as text.
    """
    result = _RESULT.search(output)
    if result is None:
        return None
    section, _ = json.JSONDecoder().raw_decode(result["section"])
    best = section["aio"]
    aio = {
        "block_size": best["block_size"],
        "queue_depth": best["queue_depth"],
        "intra_op_parallelism": best["num_threads"],
        "single_submit": best["single_submit"] == "true",
        "overlap_events": best["overlap_events"] == "true",
    }
    return Tuning(aio, float(result["read"]), float(result["write"]))


def _tuning_failure(logs: list[Path]) -> Unavailable:
    """Say why nothing was measured, in DeepSpeed's own words: the last ones of the file written last."""
    last = "it printed nothing"
    for log in sorted(logs, key=lambda file: file.stat().st_mtime):
        lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
        if lines:
            last = lines[-1]
    hint = "use a directory on a local drive: the file system must support O_DIRECT, which tmpfs may not"
    if "lock" in last and "memory" in last.lower():
        hint = "raise the limit of locked memory: `ulimit -l unlimited`"
    return Unavailable(f"DeepSpeed cannot measure this directory: {last}", hint)


def merge_aio(file: Path, aio: Mapping[str, object]) -> Path | None:
    """Set the keys of `aio` in a file, and return the copy of the old one; None if nothing changes.

    Raises InputMissing or Refused for a file that cannot be read, Unavailable if it cannot be written.
    """
    document = read(file)
    merged = merged_aio(document, aio)
    if merged.text == document.text:
        return None
    return write_back(file, merged.text, keep=True)


def merged_aio(document: Document, aio: Mapping[str, object]) -> Document:
    """Set the keys in a document; other keys of the section stay."""
    section = document.value.get(AIO)
    if section is None and AIO not in document.value:
        return _edited(document, add_member(document, (), AIO, dict(aio)))
    if not isinstance(section, dict):
        finding = Finding("bad-type", "`aio` must be an object", 'write `"aio": {}`', where=AIO)
        raise Refused([document.locate(finding)])
    for key, value in aio.items():
        if key not in document.value[AIO]:
            document = _edited(document, add_member(document, (AIO,), key, value))
        elif document.value[AIO][key] != value:
            document = _edited(document, fix_text(document, (AIO, key), Fix(FixKind.WRITE, value)))
    return document


def _edited(document: Document, text: str) -> Document:
    return parse(text, document.file)
