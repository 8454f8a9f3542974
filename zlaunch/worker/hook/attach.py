"""Beginning to attend the script, and writing down the exception that ends it."""

import contextlib
import faulthandler
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from zlaunch.files import write_whole
from zlaunch.rundir.layout import STACKS_SIGNAL, RunDir
from zlaunch.worker.hook.heartbeat import Heartbeat, open_apart, start_heartbeat
from zlaunch.worker.hook.instrument import UNSEEN, Instrumentation

_HERE = str(Path(__file__).parent)
_STANDARD = os.path.dirname(os.__file__)  # noqa: PTH120 - the standard library, as frames name it


def begin(run_dir: str, is_patient: bool = False) -> None:
    """Attend the script that is about to start in this process.

    A patient one waits for the other ranks as long as somebody debugs one of them.
    """
    layout, rank = RunDir(Path(run_dir)), int(os.environ["RANK"])
    pulse = start_heartbeat(layout.rank_pulse(rank))
    with contextlib.suppress(OSError):
        _show_stacks_in(layout.rank_stacks(rank))
    tracer = Instrumentation(pulse, _patience() if is_patient else {})
    tracer.install()
    sys.addaudithook(_Witness(layout.rank_error(rank), rank, pulse, tracer))


def _patience() -> dict[str, Callable[[ModuleType], None]]:
    from zlaunch.worker.hook.debug import GROUPS, lift_timeouts

    return {GROUPS: lift_timeouts}


def _show_stacks_in(file: Path) -> None:
    """Have all stacks written at a fatal signal, unless the user wants that elsewhere, and when asked."""
    descriptor = open_apart(file)
    if not faulthandler.is_enabled():
        faulthandler.enable(descriptor)
    faulthandler.register(STACKS_SIGNAL, descriptor)


class _Witness:
    """Writes an uncaught exception down before any `sys.excepthook`, the script's own included, sees it.

    It imports nothing any more: code that runs meanwhile would make Python forget that it was interrupted.
    """

    def __init__(self, file: Path, rank: int, pulse: Heartbeat, tracer: Instrumentation) -> None:
        self._file = file
        self._rank = rank
        self._pulse = pulse
        self._tracer = tracer

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "sys.excepthook" and self._pulse.is_here():
            with contextlib.suppress(Exception):
                if sys.version_info < (3, 11):
                    _hide_wrappers(args[2])
                self._write(args[2], args[3])

    def _write(self, error: BaseException, trace: TracebackType | None) -> None:
        frames = traceback.extract_tb(trace)
        deepest = next((frame for frame in reversed(frames) if _is_the_users(frame.filename)), None)
        facts = {
            "type": type(error).__name__,
            "module": type(error).__module__,
            "message": _message(error),
            "traceback": "".join(traceback.format_exception(type(error), error, trace)),
            "frame": deepest and {"file": deepest.filename, "line": deepest.lineno, "function": deepest.name},
            "phase": self._tracer.phase_of(error),
            "step": self._pulse.get("step"),
            "rank": self._rank,
            "host": os.uname().nodename,
            "time": time.time(),
        }
        write_whole(self._file, json.dumps(facts) + "\n")


def _hide_wrappers(error: BaseException | None) -> None:
    """Take the wrappers out of the tracebacks, which before Python 3.11 they cannot do themselves."""
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


def _is_the_users(filename: str) -> bool:
    packaged = any(f"{os.sep}{name}{os.sep}" in filename for name in ("site-packages", "dist-packages"))
    return not packaged and not filename.startswith(("<", _HERE, _STANDARD))
