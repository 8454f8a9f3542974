"""Install the hook in a script's process, and record the exception that ends it."""

import contextlib
import faulthandler
import functools
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from zlaunch.rundir.layout import STACKS_SIGNAL, RunDir
from zlaunch.rundir.write import write_record
from zlaunch.worker.hook import accelerate_cpu
from zlaunch.worker.hook.frames import is_the_users
from zlaunch.worker.hook.heartbeat import Heartbeat, start_heartbeat
from zlaunch.worker.hook.imports import UNSEEN
from zlaunch.worker.hook.instrument import Instrumentation
from zlaunch.worker.hook.own_file import open_apart
from zlaunch.worker.hook.program_record import PARALLEL, ProgramRecorder
from zlaunch.worker.hook.save_request import SaveRequest
from zlaunch.worker.hook.shield import shield_children
from zlaunch.worker.hook.step_profiler import VARIABLE as PROFILE
from zlaunch.worker.hook.step_profiler import NsysSteps, profiler_of
from zlaunch.worker.hook.trackers import TRACKERS, watch_tracker

if TYPE_CHECKING:
    from zlaunch.rundir.record import ErrorRecord


def install(root: str, is_debugged: bool = False) -> None:
    """Install the hook before the script starts; if a rank is debugged, without timeouts between ranks."""
    run_dir, rank = RunDir(Path(root)), int(os.environ["RANK"])
    profiler = profiler_of(run_dir, rank, os.environ.pop(PROFILE, None))
    if isinstance(profiler, NsysSteps):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which nsys has to ignore
    heartbeat = start_heartbeat(run_dir.rank_heartbeat(rank), run_dir.steps if rank == 0 else None)
    with contextlib.suppress(OSError):
        _dump_stacks_to(run_dir.rank_stacks(rank))
    program = ProgramRecorder(run_dir.rank_program(rank))
    also: dict[str, Callable[[ModuleType], None]] = {
        accelerate_cpu.MODULE: accelerate_cpu.allow_deepspeed,
        **dict.fromkeys(PARALLEL, program.watch_parallel),
        **dict.fromkeys(TRACKERS, functools.partial(watch_tracker, note=program.tracker)),
    }
    if is_debugged:
        from zlaunch.worker.hook.debug import GROUPS, lift_timeouts

        also[GROUPS] = lift_timeouts
    request = SaveRequest(run_dir.save_at)
    instrumentation = Instrumentation(heartbeat, program, request, also, profiler)
    instrumentation.install()
    shield_children()
    sys.addaudithook(_ErrorRecorder(run_dir.rank_error(rank), rank, heartbeat, instrumentation))


def _dump_stacks_to(file: Path) -> None:
    """Write all stacks on request and, unless the script's user enabled faulthandler, at a fatal signal."""
    descriptor = open_apart(file)
    if not faulthandler.is_enabled():
        faulthandler.enable(descriptor)
    faulthandler.register(STACKS_SIGNAL, descriptor)


_Uncaught = tuple[object, type, BaseException, TracebackType | None]
"""Arguments of the audit event `sys.excepthook`."""


class _ErrorRecorder:
    """An audit hook that records an uncaught exception before any `sys.excepthook` sees it.

    It must not import anything: after Ctrl-C, running an import would make Python forget the interrupt.
    """

    def __init__(self, file: Path, rank: int, heartbeat: Heartbeat, instrumentation: Instrumentation) -> None:
        self._file = file
        self._rank = rank
        self._heartbeat = heartbeat
        self._instrumentation = instrumentation

    def __call__(self, event: str, args: _Uncaught) -> None:
        if event == "sys.excepthook" and self._heartbeat.is_here():
            with contextlib.suppress(Exception):
                if sys.version_info < (3, 11):
                    _hide_wrappers(args[2])
                self._write(args[2], args[3])

    def _write(self, error: BaseException, trace: TracebackType | None) -> None:
        frames = traceback.extract_tb(trace)
        deepest = next((frame for frame in reversed(frames) if is_the_users(frame.filename)), None)
        record: ErrorRecord = {
            "type": type(error).__name__,
            "module": type(error).__module__,
            "message": _message(error),
            "traceback": "".join(traceback.format_exception(type(error), error, trace)),
            "frame": None,
            "phase": self._instrumentation.phase_of(error),
            "step": self._heartbeat.step,
            "rank": self._rank,
            "host": os.uname().nodename,
            "time": time.time(),
        }
        if deepest is not None:
            record["frame"] = {"file": deepest.filename, "line": deepest.lineno, "function": deepest.name}
        write_record(self._file, record, indent=None)


def _hide_wrappers(error: BaseException | None) -> None:
    """Remove the wrappers from the tracebacks; before Python 3.11 they cannot do that themselves."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        link = error.__traceback__
        while link is not None:
            while link.tb_next is not None and link.tb_next.tb_frame.f_code.co_filename == UNSEEN:
                link.tb_next = link.tb_next.tb_next
            link = link.tb_next
        seen.append(error)
        error = error.__cause__ or error.__context__


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's own `__str__` may do anything
        return ""
