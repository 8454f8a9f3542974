"""Beginning to attend the script, and writing down the exception that ends it."""

import contextlib
import faulthandler
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from zlaunch.inside.pulse import Pulse, begin_pulse
from zlaunch.inside.tracing import Tracer
from zlaunch.layout import STACKS_SIGNAL, RunLayout, write_whole

_HERE = str(Path(__file__).parent)
_STANDARD = os.path.dirname(os.__file__)  # noqa: PTH120 - the standard library, as frames name it


def begin(run_dir: str) -> None:
    """Attend the script that is about to start in this process; never keep it from starting."""
    with contextlib.suppress(OSError):
        layout, rank = RunLayout(Path(run_dir)), int(os.environ["RANK"])
        pulse = begin_pulse(layout.rank_pulse(rank))
        stacks = layout.rank_stacks(rank).open("w")
        faulthandler.enable(stacks)
        faulthandler.register(STACKS_SIGNAL, stacks)
        tracer = Tracer(pulse)
        tracer.install()
        sys.excepthook = _Hook(layout.rank_error(rank), rank, pulse, tracer)


class _Hook:
    """Writes an uncaught exception down, then lets Python do what it does."""

    def __init__(self, file: Path, rank: int, pulse: Pulse, tracer: Tracer) -> None:
        self._file = file
        self._rank = rank
        self._pulse = pulse
        self._tracer = tracer
        self._before = sys.excepthook

    def __call__(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        trace = _without_ours(trace)
        with contextlib.suppress(Exception):
            self._write(error, trace)
        self._before(kind, error.with_traceback(trace), trace)

    def _write(self, error: BaseException, trace: TracebackType | None) -> None:
        import socket
        import traceback

        frames = traceback.extract_tb(trace)
        deepest = next((frame for frame in reversed(frames) if _is_the_users(frame.filename)), None)
        facts = {
            "type": type(error).__name__,
            "module": type(error).__module__,
            "message": str(error),
            "traceback": "".join(traceback.format_exception(type(error), error, trace)),
            "frame": deepest and {"file": deepest.filename, "line": deepest.lineno, "function": deepest.name},
            "phase": self._tracer.phase_of(error),
            "step": self._pulse.get("step"),
            "rank": self._rank,
            "host": socket.gethostname(),
            "time": time.time(),
        }
        write_whole(self._file, json.dumps(facts) + "\n")


def _is_the_users(filename: str) -> bool:
    packaged = any(f"{os.sep}{name}{os.sep}" in filename for name in ("site-packages", "dist-packages"))
    return not packaged and not filename.startswith(("<", _HERE, _STANDARD))


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    """Leave the frames of the tracer out of a traceback."""
    kept = [link for link in _links(trace) if not link.tb_frame.f_code.co_filename.startswith(_HERE)]
    for link, following in zip(kept, [*kept[1:], None], strict=True):
        link.tb_next = following
    return kept[0] if kept else trace


def _links(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
