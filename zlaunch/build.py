"""Compiling native ops once, visibly, before the ranks start.

Left to the ranks, the first compiles for minutes while all others wait without a word, and a build
that was killed leaves a `lock` file for which every later run waits forever.
"""

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from zlaunch import console
from zlaunch.errors import Unavailable
from zlaunch.layout import RunLayout
from zlaunch.native_ops import NativeOp
from zlaunch.probe import install_time, torch_cuda
from zlaunch.process import Foreground
from zlaunch.units import duration

GRACE_SECONDS = 5.0
_DONE = re.compile(rb"^\[(\d+)/(\d+)\] ", re.MULTILINE)
_ERROR = re.compile(r"\berror\b|Error|cannot find|No such file|not found", re.IGNORECASE)


def extensions_dir(environment: Mapping[str, str]) -> Path:
    """Where torch keeps compiled extensions (`torch/utils/cpp_extension.py`, `_get_build_directory`)."""
    if chosen := environment.get("TORCH_EXTENSIONS_DIR"):
        return Path(chosen)
    cache = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cuda = torch_cuda()
    kind = f"cu{cuda.replace('.', '')}" if cuda else "cpu"
    return (
        cache
        / "torch_extensions"
        / f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}_{kind}"
    )


def missing_ops(ops: Sequence[NativeOp], environment: Mapping[str, str]) -> list[NativeOp]:
    """Name the ops that were not compiled yet, or before the installed DeepSpeed came."""
    folder, installed = extensions_dir(environment), install_time("deepspeed")
    return [op for op in ops if not _is_built(folder / op.name, installed)]


def build_missing(ops: Sequence[NativeOp], environment: Mapping[str, str], layout: RunLayout) -> int | None:
    """Compile what is missing; return the signal that ended it, if one did.

    Raises Unavailable with the compiler's first error if an op cannot be built.
    """
    missing = missing_ops(ops, environment)
    folder = extensions_dir(environment)
    for number, op in enumerate(missing, start=1):
        title = f"building {op.name} ({number} of {len(missing)})"
        console.say(f"{title}: {op.why}; compiled once, kept in {folder}")
        clear_stale_lock(folder / op.name / "lock")
        started = time.monotonic()
        with layout.build_log(op.name).open("wb") as log:
            argv = [sys.executable, "-u", "-m", "zlaunch.build_op", op.builder]
            child = Foreground(argv, environment, log, GRACE_SECONDS)
        progress = console.Progress()
        show = partial(_show, progress, title, layout.build_log(op.name), started)
        returncode = child.wait(show)
        took = duration(time.monotonic() - started)
        if child.stopped_by is not None:
            clear_stale_lock(folder / op.name / "lock")
            progress.end(f"{title}: stopped after {took}")
            return child.stopped_by
        if returncode != 0:
            progress.end(f"{title}: failed after {took}")
            raise _failure(op, layout)
        progress.end(f"{title}: done in {took}")
    return None


def clear_stale_lock(lock: Path) -> None:
    """Remove the lock of a build that was killed: one that no process holds open."""
    if not lock.exists():
        return
    holder = _holder(lock)
    if holder is None:
        lock.unlink(missing_ok=True)
        console.say(
            f"removed {lock}, left by a build that was killed: every run would have waited for it forever"
        )
    elif holder != os.getpid():
        console.say(f"process {holder} is building there already; waiting for it")


def _is_built(folder: Path, installed: float) -> bool:
    library = folder / f"{folder.name}.so"
    return library.exists() and library.stat().st_mtime >= installed and not (folder / "lock").exists()


def _holder(lock: Path) -> int | None:
    """Find the process that has the lock open, as torch's FileBaton does while it builds."""
    target = str(lock.resolve())
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(link.readlink()) == target:
                return int(link.parts[2])
        except OSError:
            continue
    return None


def _show(progress: console.Progress, title: str, log: Path, started: float) -> None:
    steps = _DONE.findall(log.read_bytes())
    done, total = steps[-1] if steps else (b"0", b"?")
    bar = f"{int(done)} of {total.decode()} files compiled" if steps else "starting the compiler"
    progress.show(f"{title}: {bar}", duration(time.monotonic() - started))


def _failure(op: NativeOp, layout: RunLayout) -> Unavailable:
    log = layout.build_log(op.name)
    lines = log.read_text("utf-8", "replace").splitlines()
    first = next((line for line in lines if _ERROR.search(line)), lines[-1] if lines else "no output")
    advice = {"async_io": "install libaio (Debian: `apt-get install libaio-dev`)"}
    return Unavailable(
        f"{op.name} cannot be built: {first.strip()}",
        f"{advice.get(op.name, 'see that a C++ compiler and ninja work')}; the whole output is in {log}",
    )
