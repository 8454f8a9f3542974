"""Compile native ops once and visibly, before the ranks start.

Otherwise the first rank compiles for minutes while the others wait silently, and with torch up to 2.13 a
killed build leaves a `lock` file that every later run waits for. An op is ready if torch and ninja would do
nothing but load it.
"""

import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from zlaunch.console import StepReporter
from zlaunch.diagnosis.log_text import compiler_error
from zlaunch.dsconfig.native_ops import NativeOp
from zlaunch.errors import Unavailable
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.build_lock import lock_age, lock_holder, lock_state
from zlaunch.hosts.machine.compiled_ops import CompiledOps
from zlaunch.hosts.machine.interpreter import Interpreter
from zlaunch.hosts.machine.op_cache import VARIABLE, OpCache, extensions_dir, find_op_cache
from zlaunch.hosts.machine.resources import Machine
from zlaunch.launch.plan import LaunchPlan
from zlaunch.process import RELAYED, Foreground, Stopped, ours
from zlaunch.rundir.layout import RunDir
from zlaunch.units import duration, plural

GRACE_SECONDS = 5.0
_MADE = re.compile(r"^build (\S+\.s?o): ", re.MULTILINE)
_STEP = re.compile(r"^\[\d+/\d+\] ", re.MULTILINE)
_STOPPED = {**{-number: number for number in RELAYED}, **{128 + number: number for number in RELAYED}}
"""Exit status of a build that somebody else has stopped → the signal."""
_ERROR = re.compile(r"\berror\b|Error|cannot find|No such file|not found", re.IGNORECASE)

_ADVICE = {
    r"Python\.h": "install the headers of Python (Debian: `apt-get install python3-dev`)",
    "libaio": "install libaio (Debian: `apt-get install libaio-dev`)",
    "ninja not being installed": "install ninja in the Python of the ranks: `pip install ninja`",
    "CUDA_HOME": "install the CUDA toolkit that torch was built for, and set CUDA_HOME",
    r"[cg]\+\+: (command )?not found|No such file or directory: '[^']*[cg]\+\+'": "install a C++ compiler"
    " (Debian: `apt-get install g++`)",
}
"""Pattern in the output of a failed build → what to do; the first match counts."""


class NotBuilt(Unavailable):
    """A native op does not compile."""

    def __init__(self, message: str, advice: str, log: Path) -> None:
        """Name the file with the compiler's output."""
        super().__init__(message, f"{advice}; the full output is in {log}")
        self.advice, self.log = advice, log


def build_missing(
    plan: LaunchPlan, environment: Mapping[str, str], reporter: StepReporter, if_killed: Sequence[str]
) -> signal.Signals | None:
    """Make the ops of a plan ready on this machine, as `OpBuild.run` does."""
    cache = plan.facts.here.op_cache
    if cache is None:
        return None
    return OpBuild(plan.ops, plan.python, cache, plan.layout, environment, reporter, if_killed).run()


@dataclass(frozen=True)
class OpBuild:
    """Makes native ops ready for an interpreter."""

    ops: Sequence[NativeOp]
    python: Interpreter
    cache: OpCache
    layout: RunDir
    """Where the output of the compiler is kept."""
    environment: Mapping[str, str]
    """Variables of the ranks."""
    reporter: StepReporter
    if_killed: Sequence[str] = ()
    """Run if zlaunch is killed meanwhile."""

    @cached_property
    def compiled(self) -> CompiledOps:
        """The ops that are there; a repeated run keeps the directory that was recorded."""
        folder = extensions_dir(self.python, self.environment)
        return CompiledOps(folder, self.python, self.cache.key, self.environment.get("PATH"))

    def run(self) -> signal.Signals | None:
        """Build what is missing; return the signal that ended it, if one did.

        Raises NotBuilt with the compiler's first error if an op cannot be built.
        """
        compiled, standard = self.compiled, self.cache.standard
        if compiled.folder == self.cache.folder != standard and (adopted := compiled.adopt(standard)):
            self.reporter.note(f"copied {', '.join(adopted)} from {standard}")
        missing = {op: why for op in self.ops if (why := compiled.why_not_ready(op)) is not None}
        if missing:
            verb = "compiling"
            if all(map(compiled.is_compiled, missing)):
                verb = "checking"
            count = plural(len(missing), "native op")
            self.reporter.note(f"{verb} {count}, once; kept in {compiled.folder}")
        for number, (op, why) in enumerate(missing.items(), start=1):
            title = f"{op.name} ({number} of {len(missing)})"
            self.reporter.note(f"{title}: {'; '.join(filter(None, [op.why, why]))}")
            stopped_by = self._build(op, title)
            if stopped_by is not None:
                return stopped_by
        return None

    def _build(self, op: NativeOp, title: str) -> signal.Signals | None:
        locks = [self.compiled.folder / name / "lock" for name in (op.name, *op.along)]
        for lock in locks:
            await_lock(lock, self.python, self.reporter)
        self.compiled.delete_others(op)
        try:
            stopped_by = self._compile(op, title)
        finally:
            for lock in locks:
                if lock_state(lock, self.python) == "left":
                    lock.unlink(missing_ok=True)
        if stopped_by is None:
            self.compiled.mark(op)
        return stopped_by

    def _compile(self, op: NativeOp, title: str) -> signal.Signals | None:
        started, folder = time.time(), self.compiled.folder / op.name
        with self.layout.build_log(op.name).open("wb") as log:
            argv = ours("zlaunch.worker.build_op", op.builder, python=self.python.executable)
            environment = {**self.environment, "PYTHONUNBUFFERED": "1"}
            child = Foreground(argv, environment, log, GRACE_SECONDS, if_killed=self.if_killed)
        returncode = child.wait(lambda: self.reporter.busy(*_so_far(title, folder, started)))
        took = duration(time.time() - started)
        stopped_by = child.stopped_by or _STOPPED.get(returncode)
        outcome = "loaded in"
        if stopped_by:
            outcome = "stopped after"
        elif returncode:
            outcome = "failed after"
        elif _is_newer(folder / f"{op.name}.so", started) and self._has_run_ninja(op):
            outcome = "compiled in"
        self.reporter.note(f"{title}: {outcome} {took}")
        if returncode and not stopped_by:
            raise _failure(op, self.layout, returncode)
        return stopped_by

    def _has_run_ninja(self, op: NativeOp) -> bool:
        """Whether this build compiled anything; another host may have, while this one waited for it."""
        return _STEP.search(self.layout.build_log(op.name).read_text("utf-8", "replace")) is not None


def environment_with(
    ops: Sequence[NativeOp], python: Interpreter, machine: Machine, folder: Path, reporter: StepReporter
) -> dict[str, str]:
    """Compile ops, and return the environment of a rank that loads them; `folder` gets the logs.

    Raises Stopped for a signal, NotBuilt if the compiler fails.
    """
    path = os.pathsep.join([*python.not_on_path(os.environ), os.environ.get("PATH", os.defpath)])
    environment = {**os.environ, "PATH": path}
    if not machine.gpus:
        environment["DS_ACCELERATOR"] = "cpu"
    cache = find_op_cache(python, machine, environment)
    environment[VARIABLE] = str(cache.folder)
    logs = RunDir(folder / "build")
    logs.logs.mkdir(parents=True)
    stopped_by = OpBuild(tuple(ops), python, cache, logs, environment, reporter).run()
    if stopped_by is not None:
        raise Stopped(stopped_by)
    return environment


def _is_newer(file: Path, when: float) -> bool:
    return file.exists() and file.stat().st_mtime > when


def await_lock(lock: Path, python: Interpreter, reporter: StepReporter) -> None:
    """Wait for another build of the same op, or remove the lock that a killed build has left behind."""
    name, is_told, began = lock.parent.name, False, time.monotonic()
    while (state := lock_state(lock, python)) != "free":
        if state == "left":
            age = duration(lock_age(lock))
            lock.unlink(missing_ok=True)
            reporter.note(
                f"removed the lock {lock}, {age} old: its build was killed, and every run would wait for it"
            )
        elif is_told:
            reporter.busy(f"waiting for {name}", duration(time.monotonic() - began))
            time.sleep(1)
        else:
            is_told = True
            holder = lock_holder(lock)
            builder = "another user, container or host" if holder is None else f"process {holder}"
            reporter.note(f"{builder} is already building {name}; waiting for it")


def _so_far(title: str, folder: Path, started: float) -> tuple[str, str]:
    """Count the files that ninja has compiled, out of all."""
    plan = folder / "build.ninja"
    named = _MADE.findall(plan.read_text("utf-8", "replace")) if plan.exists() else []
    made = [name for name in named if _is_newer(folder / name, started)]
    is_there = (folder / f"{folder.name}.so").exists() and not made  # perhaps nothing is to be compiled
    so_far = f"{len(made)} of {len(named)} files compiled" if named and not is_there else "preparing"
    return f"{title}: {so_far}", duration(time.time() - started)


def _failure(op: NativeOp, layout: RunDir, returncode: int) -> NotBuilt:
    log = layout.build_log(op.name)
    if returncode < 0:
        killed = f"{op.name} was not compiled: its build was killed by {signal.Signals(-returncode).name}"
        return NotBuilt(killed, "start again", log)
    text = log.read_text("utf-8", "replace")
    first = compiler_error(text) or next(
        (line for line in text.splitlines() if _ERROR.search(line)), "the compiler printed no error"
    )
    return NotBuilt(f"{op.name} cannot be compiled: {first.strip()}", advice_on(text), log)


def advice_on(output: str) -> str:
    """Advice for a failed build with this output."""
    fitting = (advice for sign, advice in _ADVICE.items() if re.search(sign, output))
    return next(fitting, "see the compiler's output")
