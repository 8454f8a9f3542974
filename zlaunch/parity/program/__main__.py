"""`python -m zlaunch.parity.program`: reads a trial from stdin, writes a `Comparison` to stdout as JSON.

The packages are imported once. The two ranks are forks, and so is each reference after them.
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zlaunch.hosts.adapters import adapter_of
from zlaunch.parity.small_model import deepest
from zlaunch.parity.trial import Trial
from zlaunch.process import die_with_parent

if TYPE_CHECKING:
    from zlaunch.parity.program.measured import Measured

_TIMEOUT = 240
"""Seconds after which a process counts as one that hangs."""

Result = dict[str, Any]


def main() -> None:
    """Train and compare."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # prints of the packages go to stderr
    trial: Trial = adapter_of(Trial).validate_python(json.loads(sys.stdin.readline()))
    with tempfile.TemporaryDirectory() as directory:
        result = _check(trial, Path(directory))
    print(json.dumps(result), file=out, flush=True)
    os._exit(0)  # a regular exit would take half a second to unload torch


def _check(trial: Trial, directory: Path) -> Result:
    began = time.monotonic()
    from zlaunch.estimate.rehearsal.imports import import_packages

    import_packages()
    import torch

    from zlaunch.estimate.rehearsal.model import DTYPES, NotRehearsed
    from zlaunch.parity.program import measured, rank, reference, small

    torch.set_num_threads(1)  # and no thread before the forks
    try:
        trial = replace(trial, workload=small.shallow(trial.workload))
    except NotRehearsed as error:
        return {"failure": str(error)}
    except Exception as error:  # noqa: BLE001 - a narrow model may be wrong in any way
        return {"failure": f"transformers cannot build a narrow model of this type: {_one_line(error)}"}
    wanted = DTYPES[trial.precision]
    other = torch.float32
    ranks = {f"rank {number}": partial(rank.train, trial, number, wanted, directory) for number in (0, 1)}
    if (failure := _train(ranks, directory)) is not None:
        return {"failure": failure}
    engine = _engine(directory)
    works: dict[str, Callable[[], object]] = {
        "expected": partial(reference.gradients, trial, engine, wanted, wanted),
        "other": partial(reference.gradients, trial, engine, wanted, other, reorder=wanted is other),
        "steps": partial(reference.updates, trial, engine, wanted),
    }
    if (failure := _train(works, directory)) is not None:
        return {"failure": failure}
    expected, another, steps = (_read(directory, name) for name in works)
    found = [*measured.of_gradients(engine, expected, another), *measured.of_steps(engine, steps)]
    return {
        "distances": [asdict(distance) for distance in found],
        "parameters": expected.parameters,
        "layers": deepest(trial.workload.model),
        "optimizer": engine.optimizer,
        "unreached": sorted({*expected.gradients[0]} - expected.reached),
        "seconds": time.monotonic() - began,
    }


def _read(directory: Path, name: str) -> "Measured":
    """Read what a fork of this very program wrote."""
    import torch

    measured: Measured = torch.load(directory / name, weights_only=False)
    return measured


def _engine(directory: Path) -> "Measured":
    """Return what the first rank measured, with the loss of both and the worse weights."""
    engine, second = _read(directory, "rank 0"), _read(directory, "rank 1")
    for step, loss in enumerate(second.losses):
        engine.losses[step] = (engine.losses[step] + loss) / 2
        for name, apart in second.stale[step].items():
            engine.stale[step][name] = max(engine.stale[step][name], apart)
    return engine


def _train(works: Mapping[str, Callable[[], object]], directory: Path) -> str | None:
    """Do all works at once, in forks that write what they return; return why one of them failed."""
    running = {_fork(work, directory / name): name for name, work in works.items()}
    deadline, failure = time.monotonic() + _TIMEOUT, None
    while running and failure is None:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            if time.monotonic() > deadline:
                failure = f"{', '.join(running.values())} took more than {_TIMEOUT} s"
            time.sleep(0.01)
        elif status:
            failure = _why(running.pop(pid), os.waitstatus_to_exitcode(status), directory)
        else:
            running.pop(pid)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return failure


def _fork(work: Callable[[], object], file: Path) -> int:
    parent, pid = os.getpid(), os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with_parent(parent)
        import torch

        try:
            torch.save(work(), file)
            status = 0
        except BaseException as error:  # noqa: BLE001 - any exception ends only this process
            traceback.print_exc()
            file.write_text(_one_line(error))
    finally:
        os._exit(status)


def _why(name: str, status: int, directory: Path) -> str:
    if status < 0:
        return f"{name} ended with {signal.Signals(-status).name}"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return f"{name}: {(directory / name).read_text()}"
    return f"{name} ended with status {status}"


def _one_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip().splitlines()[-1]


if __name__ == "__main__":
    main()
