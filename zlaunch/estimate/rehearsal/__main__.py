"""`python -m zlaunch.estimate.rehearsal [JOBS]`: one workload per line on stdin, one forecast on stdout.

The packages are imported once; each rehearsal is a fork, because an exception within autograd ends
the process, and because DeepSpeed keeps state between engines. What is saved in one fork is resumed
in another.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter

from zlaunch.estimate.forecast import RESUME, Forecast
from zlaunch.estimate.workload import Workload
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
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with tempfile.TemporaryDirectory() as checkpoints:
        for index, answer in _forked(_Questions(Path(checkpoints)), jobs):
            print(json.dumps({"index": index, **answer}), file=out, flush=True)
    os._exit(0)  # nothing is left to be put in order, and taking torch down takes half a second


@dataclass(frozen=True)
class _Task:
    """What one fork does: it trains, or it resumes what another saved, whose answer is `trained`."""

    index: int
    workload: Workload
    checkpoint: Path
    trained: Answer | None = None
    broken: str | None = None
    """Why the same with images could not be rehearsed."""

    def following(self, answer: Answer) -> "_Task | None":
        """Say what is to be done next, if anything is."""
        if self.trained is not None:
            return None
        if "broken" in answer and answer.get("has_images"):
            workload = replace(self.workload, images=False)
            return replace(self, workload=workload, broken=answer["broken"])
        saved = self.workload.save and answer.get("forecast", {}).get("late_error", "") is None
        return replace(self, trained=answer) if saved and self.workload.resume else None

    def whole(self, answer: Answer) -> Answer:
        """Put what training and resuming were answered together, and why it was not answered before."""
        before = {} if self.broken is None else {"broken": self.broken}
        if self.trained is None:
            return {**before, **answer}
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
        return {**before, "forecast": {**trained, "resume": resume, "seconds": seconds}}


class _Questions:
    """The lines of stdin, as far as they have come."""

    def __init__(self, checkpoints: Path) -> None:
        """Let each workload save below `checkpoints`."""
        self.may_come = True
        self._checkpoints = checkpoints
        self._waiting: list[bytes] = []
        self._left = b""
        self._count = 0

    def next(self) -> _Task | None:
        """Take the next line, if it is there."""
        if not self._waiting:
            return None
        workload = TypeAdapter(Workload).validate_python(json.loads(self._waiting.pop(0)))
        task = _Task(self._count, workload, self._checkpoints / str(self._count))
        self._count += 1
        return task

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
    """Rehearse each workload in processes of its own, several at a time."""
    running: dict[int, tuple[_Task, IO[str], float]] = {}
    following: list[_Task] = []
    is_warm, why = False, None
    while True:
        while len(running) < jobs:
            task = following.pop() if following else questions.next()
            if task is None:
                break
            if not is_warm:
                is_warm, why = True, _warm_up(task.workload)
            file: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the fork writes, we read
            running[_fork(task, file, why)] = (task, file, time.monotonic() + _SECONDS)
        if not running and not questions.may_come:
            return
        questions.wait(_TICK if running else None)
        for task, answer in _ended(running):
            if (then := task.following(answer)) is not None:
                following.append(then)
            else:
                yield task.index, task.whole(answer)


def _ended(running: dict[int, tuple[_Task, IO[str], float]]) -> Iterator[tuple[_Task, Answer]]:
    """Read what forks that have ended leave; kill those that take too long."""
    while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
        task, file, _ = running.pop(ended[0])
        yield task, _read(file, os.waitstatus_to_exitcode(ended[1]))
    for late in [pid for pid, (_, _, deadline) in running.items() if time.monotonic() > deadline]:
        os.kill(late, signal.SIGKILL)


def _warm_up(workload: Workload) -> str | None:
    """Import what all forks need, and return why that fails, if it does.

    A model's own code is left to the forks, which may crash or hang.
    """
    from zlaunch.estimate.rehearsal.imports import import_packages

    try:
        import_packages()
        from zlaunch.estimate.rehearsal import model, run  # noqa: F401 - forks need it
    except Exception as error:  # noqa: BLE001 - an installation can be broken in any way
        return _words(error)
    if workload.remote_code is None:
        with contextlib.suppress(Exception):
            model.choose_class(model.read_config(workload), None)
    return None


def _fork(task: _Task, file: IO[str], why: str | None) -> int:
    """Start a rehearsal, or if there is a reason why none can be, write that; return the process id."""
    parent, pid = os.getpid(), os.fork()
    if pid:
        return pid

    def write(answer: Answer) -> None:
        print(json.dumps(answer), file=file, flush=True)

    status = 1
    try:
        die_with_parent(parent)
        try:
            write(_answer(task, write) if why is None else {"broken": why})
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ends this rehearsal alone
            write({"broken": repr(error)})
        status = 0
    finally:
        os._exit(status)  # a fork that went on as its parent would delete the checkpoints of all others


def _read(file: IO[str], status: int) -> Answer:
    """Read what a fork said until its end; nothing but text has a formula that stands in."""
    found: Answer = {}
    with file:
        file.seek(0)
        try:
            for line in file:
                found |= json.loads(line)
        except ValueError:
            found["broken"] = "the answer of the rehearsal is not complete"
    if status:
        ended = signal.Signals(-status).name if status < 0 else f"status {status}"
        found = {**found, "broken": f"the rehearsal ended by {ended}"}
    if "broken" in found and not found.get("is_text", True) and not found.get("has_images"):
        return {"untold": f"it could not be rehearsed: {found['broken']}"}
    return found


def _answer(task: _Task, say: Callable[[Answer], None]) -> Answer:
    """Rehearse; what DeepSpeed or the model raise belongs to the forecast, anything else is our fault."""
    from zlaunch.estimate.rehearsal import run
    from zlaunch.estimate.rehearsal.model import CannotTell, UnknownModel
    from zlaunch.estimate.rehearsal.optimizer import UnknownOptimizer
    from zlaunch.estimate.rehearsal.to_forecast import forecast

    began, seen = time.monotonic(), run.RehearsedRun(tell=say)
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
        words = _words(error)
        if task.workload.remote_code is not None and not run.is_theirs(error, ("deepspeed",)):
            return {"untold": f"its own code could not be rehearsed: {words}"}
        if not run.is_theirs(error) or seen.is_made_up:
            return {"broken": words}
        seen.late_error = run.describe_error(error, seen.ledger.phase)
    answer = TypeAdapter(Forecast).dump_python(forecast(seen, time.monotonic() - began), mode="json")
    return {"forecast": answer}


def _words(error: Exception) -> str:
    """Say what was raised in one line."""
    return traceback.format_exception_only(error)[-1].strip().splitlines()[-1]


if __name__ == "__main__":
    main()
