"""`python -m zlaunch.rehearsal [JOBS]`: workloads on stdin as JSON, a forecast a line on stdout.

The packages are imported once; each rehearsal is a fork, because an exception within autograd ends
the process, and because DeepSpeed keeps state between engines.
"""

import contextlib
import gc
import json
import os
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

Answer = dict[str, Any]


def main() -> None:
    """Answer every workload, in the order in which they end."""
    gc.disable()  # packages are cycles that live on; looking for others takes a fifth of an import
    workloads = TypeAdapter(list[Workload]).validate_python(json.load(sys.stdin))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the packages print is no answer
    _warm_up(workloads)
    for index, answer in _forked(workloads, int(sys.argv[1]) if len(sys.argv) > 1 else 2):
        print(json.dumps({"index": index, **answer}), file=out, flush=True)
    os._exit(0)  # nothing is left to be put in order, and taking torch down takes half a second


def _warm_up(workloads: list[Workload]) -> None:
    """Import what all forks need."""
    from zlaunch.rehearsal.packages import import_packages

    for workload in workloads[:1]:
        import_packages()
        from zlaunch.rehearsal import model, run  # noqa: F401 - forks need it

        with contextlib.suppress(Exception):
            model.model_class(model.read_config(workload))


def _forked(workloads: list[Workload], jobs: int) -> Iterator[tuple[int, Answer]]:
    """Rehearse each workload in a process of its own, several at a time."""
    waiting = list(enumerate(workloads))[::-1]
    running: dict[int, tuple[int, IO[str], float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            index, workload = waiting.pop()
            file: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the fork writes, we read
            running[_fork(workload, file)] = (index, file, time.monotonic() + _SECONDS)
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            index, file, _ = running.pop(pid)
            yield index, _read(file, os.waitstatus_to_exitcode(status))
            continue
        for late in [pid for pid, (_, _, deadline) in running.items() if time.monotonic() > deadline]:
            os.kill(late, signal.SIGKILL)
        time.sleep(0.01)


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
