"""`python -m zlaunch.rehearsal [JOBS]`: a workload a line on stdin as JSON, a forecast a line on stdout.

The packages are imported once; each rehearsal is a fork, because an exception within autograd ends
the process, and because DeepSpeed keeps state between engines.
"""

import contextlib
import gc
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from typing import IO, Any

from pydantic import TypeAdapter

from zlaunch.memory.forecast import Forecast
from zlaunch.memory.workload import Workload
from zlaunch.process import die_with_parent

_SECONDS = 600
"""How long one rehearsal may take."""
_TICK = 0.01
"""Seconds between two looks whether a rehearsal has ended."""

Answer = dict[str, Any]


def main() -> None:
    """Answer every workload, in the order in which they end, until no more can come."""
    gc.disable()  # packages are cycles that live on; looking for others takes a fifth of an import
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the packages print is no answer
    for index, answer in _forked(_Questions(), int(sys.argv[1]) if len(sys.argv) > 1 else 2):
        print(json.dumps({"index": index, **answer}), file=out, flush=True)
    os._exit(0)  # nothing is left to be put in order, and taking torch down takes half a second


class _Questions:
    """The lines of stdin, as far as they have come."""

    def __init__(self) -> None:
        self.may_come = True
        self._waiting: list[bytes] = []
        self._left = b""

    def next(self) -> bytes | None:
        """Take the next line, if it is there."""
        return self._waiting.pop(0) if self._waiting else None

    def wait(self, seconds: float | None) -> None:
        """Let lines come; None waits until one does, or none can any more."""
        if self._waiting or not self.may_come:
            time.sleep(seconds or 0)
            return
        if select.select([0], [], [], seconds)[0]:
            chunk = os.read(0, 1 << 16)
            self.may_come = bool(chunk)
            *lines, self._left = (self._left + chunk).split(b"\n")
            self._waiting += lines


def _forked(questions: _Questions, jobs: int) -> Iterator[tuple[int, Answer]]:
    """Rehearse each workload in a process of its own, several at a time."""
    running: dict[int, tuple[int, IO[str], float]] = {}
    count = 0
    while True:
        while len(running) < jobs and (line := questions.next()) is not None:
            workload = TypeAdapter(Workload).validate_json(line)
            if not count:
                _warm_up(workload)
            file: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the fork writes, we read
            running[_fork(workload, file)] = (count, file, time.monotonic() + _SECONDS)
            count += 1
        if not running and not questions.may_come:
            return
        questions.wait(_TICK if running else None)
        yield from _ended(running)


def _ended(running: dict[int, tuple[int, IO[str], float]]) -> Iterator[tuple[int, Answer]]:
    """Read what forks that have ended leave; kill those that take too long."""
    while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
        index, file, _ = running.pop(ended[0])
        yield index, _read(file, os.waitstatus_to_exitcode(ended[1]))
    for late in [pid for pid, (_, _, deadline) in running.items() if time.monotonic() > deadline]:
        os.kill(late, signal.SIGKILL)


def _warm_up(workload: Workload) -> None:
    """Import what all forks need."""
    from zlaunch.rehearsal.packages import import_packages

    import_packages()
    from zlaunch.rehearsal import model, run  # noqa: F401 - forks need it

    with contextlib.suppress(Exception):
        model.model_class(model.read_config(workload))


def _fork(workload: Workload, file: IO[str]) -> int:
    parent, pid = os.getpid(), os.fork()
    if pid:
        return pid
    die_with_parent(parent)
    try:
        answer = _answer(workload)
    except BaseException as error:  # noqa: BLE001 - a fork must not go on as its parent
        answer = {"broken": repr(error)}
    json.dump(answer, file)
    file.flush()
    os._exit(0)


def _read(file: IO[str], status: int) -> Answer:
    with file:
        file.seek(0)
        text = file.read()
    if text:
        found: Answer = json.loads(text)
        return found
    ended = signal.Signals(-status).name if status < 0 else f"status {status}"
    return {"broken": f"the rehearsal ended by {ended}"}


def _answer(workload: Workload) -> Answer:
    """Rehearse; what DeepSpeed or the model raise belongs to the forecast, anything else is our fault."""
    from zlaunch.rehearsal import run
    from zlaunch.rehearsal.answer import forecast
    from zlaunch.rehearsal.model import UnknownModel
    from zlaunch.rehearsal.training import UnknownOptimizer

    began, seen = time.monotonic(), run.Run()
    try:
        run.prepare(workload)
        run.rehearse(workload, seen)
    except UnknownModel as error:
        return {"unknown": str(error)}
    except UnknownOptimizer as error:
        return {"broken": str(error)}
    except Exception as error:  # noqa: BLE001 - whose fault it is shows in the traceback
        if not run.is_theirs(error):
            return {"broken": "".join(traceback.format_exception(error)[-6:])}
        seen.late_error = run.told(error, seen.ledger.phase)
    answer = TypeAdapter(Forecast).dump_python(forecast(seen, time.monotonic() - began), mode="json")
    return {"forecast": answer}


if __name__ == "__main__":
    main()
