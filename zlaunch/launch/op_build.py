"""Compile native ops once and visibly, before the ranks start.

Otherwise the first rank compiles for minutes while the others wait silently, and a killed build leaves a
`lock` file that every later run waits for.
"""

import re
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from zlaunch.config.native_ops import NativeOp
from zlaunch.diagnosis.log_text import compiler_error
from zlaunch.errors import Unavailable
from zlaunch.hosts.op_cache import extensions_dir, lock_holder
from zlaunch.hosts.probe import install_location
from zlaunch.launch.reporter import Reporter
from zlaunch.process import Foreground, ours
from zlaunch.rundir.layout import RunDir
from zlaunch.units import duration, plural

GRACE_SECONDS = 5.0
_MADE = re.compile(r"^build (\S+\.s?o): ", re.MULTILINE)
_ERROR = re.compile(r"\berror\b|Error|cannot find|No such file|not found", re.IGNORECASE)

_ADVICE = {
    r"Python\.h": "install the headers of Python (Debian: `apt-get install python3-dev`)",
    "libaio": "install libaio (Debian: `apt-get install libaio-dev`)",
    "CUDA_HOME": "install the CUDA toolkit that torch was built for, and set CUDA_HOME",
    r"[cg]\+\+: (command )?not found|No such file or directory: '[^']*[cg]\+\+'": "install a C++ compiler"
    " (Debian: `apt-get install g++`)",
}
"""Pattern in the output of a failed build → what to do; the first match counts."""


class NotBuilt(Unavailable):
    """A native op does not compile."""


def build_missing(
    ops: Sequence[NativeOp], environment: Mapping[str, str], layout: RunDir, reporter: Reporter
) -> signal.Signals | None:
    """Compile what is missing; return the signal that ended it, if one did.

    Raises NotBuilt with the compiler's first error if an op cannot be built.
    """
    folder = extensions_dir(environment)
    missing = [op for op in ops if not _is_built(folder / op.name)]
    if missing:
        reporter.note(f"compiling {plural(len(missing), 'native op')}, once; kept in {folder}")
    for number, op in enumerate(missing, start=1):
        title = f"{op.name} ({number} of {len(missing)})"
        reporter.note(f"{title}: {op.why}")
        for name in (op.name, *op.along):
            clear_stale_lock(folder / name / "lock", reporter)
        stopped_by = _build(op, title, environment, layout, reporter)
        if stopped_by is not None:
            clear_stale_lock(folder / op.name / "lock", reporter)
            return stopped_by
    return None


def _build(
    op: NativeOp, title: str, environment: Mapping[str, str], layout: RunDir, reporter: Reporter
) -> signal.Signals | None:
    started = time.time()
    with layout.build_log(op.name).open("wb") as log:
        argv = ours("zlaunch.worker.build_op", op.builder)
        child = Foreground(argv, {**environment, "PYTHONUNBUFFERED": "1"}, log, GRACE_SECONDS)
    folder = extensions_dir(environment) / op.name
    returncode = child.wait(lambda: reporter.busy(*_so_far(title, folder, started)))
    took = duration(time.time() - started)
    is_stopped = child.stopped_by is not None
    how = "stopped after" if is_stopped else "failed after" if returncode else "compiled in"
    reporter.note(f"{title}: {how} {took}")
    if returncode and not is_stopped:
        raise _failure(op, layout)
    return child.stopped_by


def clear_stale_lock(lock: Path, reporter: Reporter) -> None:
    """Remove the lock of a killed build: one that no process holds open."""
    if not lock.exists():
        return
    holder = lock_holder(lock)
    if holder is None:
        age = duration(time.time() - lock.stat().st_mtime)
        lock.unlink(missing_ok=True)
        reporter.note(
            f"removed the lock {lock}, {age} old: its build was killed, and every run would wait for it"
        )
    else:
        reporter.note(f"process {holder} is already building {lock.parent.name}; waiting for it")


def _is_built(folder: Path) -> bool:
    """Whether torch would load the library as it is; it rebuilds for newer or moved sources."""
    library, recipe = folder / f"{folder.name}.so", folder / "build.ninja"
    if not library.exists() or (folder / "lock").exists() or not recipe.exists():
        return False
    sources, installed = install_location("deepspeed")
    return sources in recipe.read_text("utf-8", "replace") and library.stat().st_mtime >= installed


def _so_far(title: str, folder: Path, started: float) -> tuple[str, str]:
    """Count the files that ninja has compiled, out of all."""
    plan = folder / "build.ninja"
    named = _MADE.findall(plan.read_text("utf-8", "replace")) if plan.exists() else []
    made = [name for name in named if (folder / name).exists() and (folder / name).stat().st_mtime > started]
    so_far = f"{len(made)} of {len(named)} files compiled" if named else "preparing"
    return f"{title}: {so_far}", duration(time.time() - started)


def _failure(op: NativeOp, layout: RunDir) -> NotBuilt:
    log = layout.build_log(op.name)
    text = log.read_text("utf-8", "replace")
    first = compiler_error(text) or next(
        (line for line in text.splitlines() if _ERROR.search(line)), "the compiler printed no error"
    )
    hint = f"{advice_on(text)}; the full output is in {log}"
    return NotBuilt(f"{op.name} cannot be compiled: {first.strip()}", hint)


def advice_on(output: str) -> str:
    """Advice for a failed build with this output."""
    fitting = (advice for sign, advice in _ADVICE.items() if re.search(sign, output))
    return next(fitting, "see the compiler's output")
