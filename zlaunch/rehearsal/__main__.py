"""`python -m zlaunch.rehearsal [JOBS]`: workloads on stdin as JSON, a forecast a line on stdout.

The packages are imported once; each rehearsal is a fork, because an exception within autograd ends
the process, and because DeepSpeed keeps state between engines. What is saved in one fork is resumed
in another.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter

from zlaunch.memory.forecast import RESUME, Forecast
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
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with tempfile.TemporaryDirectory() as checkpoints:
        for index, answer in _forked(workloads, jobs, Path(checkpoints)):
            print(json.dumps({"index": index, **answer}), file=out, flush=True)
    os._exit(0)  # nothing is left to be put in order, and taking torch down takes half a second


def _warm_up(workloads: list[Workload]) -> None:
    """Import what all forks need."""
    from zlaunch.rehearsal.packages import import_packages

    for workload in workloads[:1]:
        import_packages()
        from zlaunch.rehearsal import model, run  # noqa: F401 - forks need it

        with contextlib.suppress(Exception):
            model.choose_class(model.read_config(workload), None)


@dataclass(frozen=True)
class _Task:
    """What one fork does: it trains, or it resumes what another saved, whose answer is `trained`."""

    index: int
    workload: Workload
    checkpoint: Path
    trained: Answer | None = None

    def following(self, answer: Answer) -> "_Task | None":
        """Say what is to be done next, if anything is."""
        if self.trained is not None:
            return None
        if "broken" in answer and answer.get("has_images"):
            return replace(self, workload=replace(self.workload, images=False))
        saved = self.workload.save and answer.get("forecast", {}).get("late_error", "") is None
        return replace(self, trained=answer) if saved and self.workload.resume else None

    def whole(self, answer: Answer) -> Answer:
        """Put what training and resuming were answered together."""
        if self.trained is None:
            return answer
        told = answer.get("forecast", {"phases": ()})
        phase = next((phase for phase in told["phases"] if phase["name"] == RESUME), None)
        resume = {
            "phase": phase,
            "parts": told["parts"] if phase else {},
            "error": told.get("late_error"),
            "why_not_rehearsed": answer.get("broken", answer.get("untold")),
        }
        trained = self.trained["forecast"]
        seconds = trained["seconds"] + told.get("seconds", 0.0)
        return {"forecast": {**trained, "resume": resume, "seconds": seconds}}


def _forked(workloads: list[Workload], jobs: int, checkpoints: Path) -> Iterator[tuple[int, Answer]]:
    """Rehearse each workload in processes of its own, several at a time."""
    waiting = [_Task(n, one, checkpoints / str(n)) for n, one in enumerate(workloads)][::-1]
    running: dict[int, tuple[_Task, IO[str], float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            task = waiting.pop()
            file: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the fork writes, we read
            running[_fork(task, file)] = (task, file, time.monotonic() + _SECONDS)
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            task, file, _ = running.pop(pid)
            answer = _read(file, os.waitstatus_to_exitcode(status))
            if (following := task.following(answer)) is not None:
                waiting.append(following)
            else:
                yield task.index, task.whole(answer)
            continue
        for late in [pid for pid, (_, _, deadline) in running.items() if time.monotonic() > deadline]:
            os.kill(late, signal.SIGKILL)
        time.sleep(0.01)


def _fork(task: _Task, file: IO[str]) -> int:
    parent, pid = os.getpid(), os.fork()
    if pid:
        return pid
    die_with_parent(parent)

    def write(answer: Answer) -> None:
        print(json.dumps(answer), file=file, flush=True)

    try:
        write(_answer(task, write))
    except BaseException as error:  # noqa: BLE001 - a fork must not go on as its parent
        write({"broken": repr(error)})
    os._exit(0)


def _read(file: IO[str], status: int) -> Answer:
    """Read what a fork said until its end; nothing but text has a formula that stands in."""
    with file:
        file.seek(0)
        found: Answer = {key: value for line in file for key, value in json.loads(line).items()}
    if status:
        ended = signal.Signals(-status).name if status < 0 else f"status {status}"
        found = {**found, "broken": f"the rehearsal ended by {ended}"}
    if "broken" in found and not found.get("is_text", True) and not found.get("has_images"):
        return {"untold": f"it could not be rehearsed: {found['broken']}"}
    return found


def _answer(task: _Task, say: Callable[[Answer], None]) -> Answer:
    """Rehearse; what DeepSpeed or the model raise belongs to the forecast, anything else is our fault."""
    from zlaunch.rehearsal import run
    from zlaunch.rehearsal.answer import forecast
    from zlaunch.rehearsal.model import CannotTell, UnknownModel
    from zlaunch.rehearsal.training import UnknownOptimizer

    began, seen = time.monotonic(), run.Run(tell=say)
    try:
        run.prepare(task.workload)
        (run.train if task.trained is None else run.resume)(task.workload, seen, task.checkpoint)
    except UnknownModel as error:
        return {"unknown": str(error)}
    except CannotTell as error:
        return {"untold": str(error)}
    except UnknownOptimizer as error:
        return {"broken": str(error)}
    except Exception as error:  # noqa: BLE001 - whose fault it is shows in the traceback
        words = traceback.format_exception_only(error)[-1].strip().splitlines()[-1]
        if task.workload.remote_code is not None and not run.is_theirs(error, ("deepspeed",)):
            return {"untold": f"its own code could not be rehearsed: {words}"}
        if not run.is_theirs(error) or seen.is_made_up:
            return {"broken": words}
        seen.late_error = run.told(error, seen.ledger.phase)
    answer = TypeAdapter(Forecast).dump_python(forecast(seen, time.monotonic() - began), mode="json")
    return {"forecast": answer}


if __name__ == "__main__":
    main()
