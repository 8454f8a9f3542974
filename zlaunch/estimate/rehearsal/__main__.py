"""`python -m zlaunch.estimate.rehearsal [JOBS]`: reads workloads from stdin, writes results to stdout.

Both are JSON, one object per line. The packages are imported once and each rehearsal is a fork, because an
exception inside autograd ends the process and DeepSpeed keeps state between engines. A checkpoint that one
fork saves is resumed in another.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from zlaunch.estimate.forecast import RESUME
from zlaunch.estimate.rehearsal.imports import import_packages, prepare_to_save
from zlaunch.estimate.workload import Images, Workload, to_json
from zlaunch.frozen import dataclass
from zlaunch.hosts.adapters import adapter_of
from zlaunch.hosts.machine.interpreter import installed_stack
from zlaunch.process import die_with_parent

_TIMEOUT = 600
"""Seconds after which a rehearsal is killed."""
_POLL_INTERVAL = 0.01
"""Seconds between checks whether a rehearsal has ended."""

Result = dict[str, Any]
"""`forecast`, or why there is none: `unknown_model` (the config.json is wrong), `cannot_tell` (the model
cannot be estimated) or `failure` (of the rehearsal)."""


def main() -> None:
    """Rehearse every workload and write results in the order of completion, until stdin is closed."""
    gc.disable()  # imported packages live on; collecting would take a fifth of the import time
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # prints of the packages go to stderr
    jobs = 2
    if len(sys.argv) > 1:
        jobs = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as checkpoints:
        for index, result in _run_forks(_WorkloadReader(Path(checkpoints)), jobs):
            print(json.dumps({"index": index, **result}), file=out, flush=True)
    os._exit(0)  # a regular exit would take half a second to unload torch


@dataclass(frozen=True)
class _Task:
    """The work of one fork: to train, or to resume after a fork whose result is `trained`."""

    index: int
    workload: Workload
    checkpoint: Path
    trained: Result | None = None
    failure: str | None = None
    """Why the rehearsal with images failed, if this is the second one, without them."""

    @property
    def resumes(self) -> bool:
        """Whether its checkpoint is to be loaded, too."""
        return self.workload.save and self.workload.resume

    def next_task(self, result: Result) -> "_Task | None":
        """Return the task that follows on a result, if there is one."""
        if self.trained is not None:
            return None
        if "failure" in result and result.get("has_images"):
            workload = replace(self.workload, images=Images(0))
            return replace(self, workload=workload, failure=result["failure"])
        is_trained = result.get("forecast", {}).get("late_error", "") is None
        if is_trained and self.resumes:
            return replace(self, trained=result)
        return None

    def merge(self, result: Result) -> Result:
        """Merge the result of this task with those of the tasks before it."""
        merged: Result = {}
        if self.failure is not None:
            merged["failure"] = self.failure
        if self.trained is None:
            return {**merged, **result}
        resumed = result.get("forecast", {"phases": ()})
        resume = {
            "phase": None,
            "parts": {},
            "error": resumed.get("late_error"),
            "why_not_rehearsed": result.get("failure", result.get("cannot_tell")),
        }
        for phase in resumed["phases"]:
            if phase["name"] == RESUME:
                resume.update(phase=phase, parts=resumed["parts"])
        trained = self.trained["forecast"]
        seconds = trained["seconds"] + resumed.get("seconds", 0.0)
        return {**merged, "forecast": {**trained, "resume": resume, "seconds": seconds}}


class _WorkloadReader:
    """Reads workloads from stdin without blocking."""

    def __init__(self, checkpoints: Path) -> None:
        """Give each workload its own checkpoint directory below `checkpoints`."""
        self.is_open = True
        self._checkpoints = checkpoints
        self._lines: list[bytes] = []
        self._incomplete = b""
        self._count = 0
        self._known: dict[str, _Task] = {}
        self.following: list[_Task] = []
        """Tasks that follow on others, and come first."""

    def next_task(self) -> _Task | None:
        """Return a task that follows on another, or that of the next line; None if none has arrived."""
        if self.following:
            return self.following.pop()
        if not self._lines:
            return None
        workload = adapter_of(Workload).validate_python(json.loads(self._lines.pop(0)))
        known = self._known.get(_key_of(workload))
        if known is None:
            task = _Task(self._count, workload, self._checkpoints / str(self._count))
        else:
            task = replace(known, index=self._count, workload=workload)
        self._count += 1
        return task

    def remember(self, task: _Task, result: Result) -> None:
        """Train no workload twice that is asked for again, for its resume or without a cache."""
        is_trained = result.get("forecast", {}).get("late_error", "") is None
        if is_trained and task.trained is None and task.failure is None:
            self._known.setdefault(_key_of(task.workload), replace(task, trained=result))

    def wait(self, seconds: float | None) -> None:
        """Wait for input; None waits until there is some, or stdin is closed."""
        if self._lines or not self.is_open:
            time.sleep(seconds or 0)
            return
        if select.select([0], [], [], seconds)[0]:
            chunk = os.read(0, 1 << 16)
            self.is_open = bool(chunk)
            *lines, self._incomplete = (self._incomplete + chunk).split(b"\n")
            self._lines += lines


def _key_of(workload: Workload) -> str:
    return to_json(replace(workload, resume=False))


_Running = dict[int, tuple[_Task, IO[str], float]]
"""Process id → task, file for the result, deadline."""


def _run_forks(reader: _WorkloadReader, jobs: int) -> Iterator[tuple[int, Result]]:
    running: _Running = {}
    is_warm, failure = False, _import_packages()
    while True:
        while len(running) < jobs:
            task = reader.next_task()
            if task is None:
                break
            if task.trained is not None and not task.resumes:
                yield task.index, task.trained
                continue
            if not is_warm and failure is None:
                is_warm = True
                _warm_up(task.workload)
            file: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the fork writes, this process reads
            running[_fork(task, file, failure)] = (task, file, time.monotonic() + _TIMEOUT)
        if not running and not reader.is_open:
            return
        if running:
            reader.wait(_POLL_INTERVAL)
        else:
            reader.wait(None)
        for task, result in _reap(running):
            reader.remember(task, result)
            if (next_task := task.next_task(result)) is not None:
                reader.following.append(next_task)
            else:
                yield task.index, task.merge(result)


def _reap(running: _Running) -> Iterator[tuple[_Task, Result]]:
    """Read the results of forks that have ended; kill those past their deadline."""
    while running and (ended := os.waitpid(-1, os.WNOHANG))[0]:
        task, file, _ = running.pop(ended[0])
        yield task, _read_result(file, os.waitstatus_to_exitcode(ended[1]))
    for late in [pid for pid, (_, _, deadline) in running.items() if time.monotonic() > deadline]:
        os.kill(late, signal.SIGKILL)


def _import_packages() -> str | None:
    """Import what all forks need; return the error if that fails."""
    try:
        import_packages()
        from zlaunch.estimate.rehearsal import model, steps  # noqa: F401 - for the forks
    except Exception as error:  # noqa: BLE001 - an installation can be broken in any way
        return _one_line(error)
    return None


def _warm_up(workload: Workload) -> None:
    """Import what forks with such workloads need; they tell what is wrong with it.

    Custom code of a model is imported only in forks, because it may crash or hang.
    """
    from zlaunch.estimate.rehearsal import model

    with contextlib.suppress(Exception):
        if workload.lora is not None:
            importlib.import_module("peft")
        if workload.save:
            prepare_to_save(str(workload.model.get("model_type")))
        if workload.remote_code is None:
            model.choose_class(model.read_config(workload), None)


def _fork(task: _Task, file: IO[str], failure: str | None) -> int:
    """Rehearse in a fork that writes its result to a file, or write `failure`; return the process id."""
    parent, pid = os.getpid(), os.fork()
    if pid:
        return pid

    def write(result: Result) -> None:
        print(json.dumps(result), file=file, flush=True)

    status = 1
    try:
        die_with_parent(parent)
        try:
            if failure is None:
                write(_rehearse(task, write))
            else:
                write({"failure": failure})
        except BaseException as error:  # noqa: BLE001 - any exception ends only this rehearsal
            write({"failure": repr(error)})
        status = 0
    finally:
        os._exit(status)  # returning would run the parent's cleanup, which deletes all checkpoints


def _read_result(file: IO[str], status: int) -> Result:
    """Read the result of a fork; without one, only text models can fall back on the closed form."""
    result: Result = {}
    with file:
        file.seek(0)
        try:
            for line in file:
                result |= json.loads(line)
        except ValueError:
            result["failure"] = "the result of the rehearsal is incomplete"
    if status < 0:
        result["failure"] = f"the rehearsal ended with {signal.Signals(-status).name}"
    elif status:
        result["failure"] = f"the rehearsal ended with status {status}"
    if "failure" in result and not result.get("is_text", True) and not result.get("has_images"):
        return {"cannot_tell": f"it could not be rehearsed: {result['failure']}"}
    return result


def _rehearse(task: _Task, report: Callable[[Result], None]) -> Result:
    """Rehearse; an exception of DeepSpeed or the model becomes part of the forecast."""
    from zlaunch.estimate.rehearsal import model, steps

    began, rehearsal = time.monotonic(), steps.Rehearsal(report=report)
    try:
        steps.prepare(task.workload)
        if task.trained is None:
            steps.train(task.workload, rehearsal, task.checkpoint)
        else:
            steps.resume(task.workload, rehearsal, task.checkpoint)
    except model.NotRehearsed as error:
        return {error.why: str(error)}
    except Exception as error:  # noqa: BLE001 - the traceback tells which package raised it
        message = _one_line(error)
        if task.workload.remote_code is not None and not steps.is_raised_by(
            error, ("deepspeed",), rehearsal.genuine_error
        ):
            return {"cannot_tell": f"its custom code could not be rehearsed: {message}"}
        # Inputs other than text are assumed, and may not be what the model expects.
        is_assumed = not rehearsal.is_text and rehearsal.log.phase not in ("load", "initialize")
        # Under another release, a patch of zlaunch may be what fails.
        is_newest = all(map(installed_stack().is_newest, ("deepspeed", "transformers")))
        if not steps.is_raised_by(error, genuine=rehearsal.genuine_error) or is_assumed or not is_newest:
            return {"failure": message}
        phase = rehearsal.log.phase
        if phase == "load" and task.workload.zero_init and steps.is_of_zero_init(task.workload, rehearsal):
            phase = "load under zero.Init"
        rehearsal.add(late_error=steps.describe_error(error, phase))
    forecast = rehearsal.forecast(time.monotonic() - began)
    return {"forecast": asdict(forecast)}


def _one_line(error: Exception) -> str:
    return traceback.format_exception_only(error)[-1].strip().splitlines()[-1]


if __name__ == "__main__":
    main()
