"""A trial: two ranks, then plain torch. Each is a fork, so that the packages are imported once."""

import contextlib
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from zlaunch.estimate.rehearsal.model import DTYPES, NotRehearsed
from zlaunch.parity.program import rank, reference
from zlaunch.parity.program.measured import Measured, of_gradients, of_steps
from zlaunch.parity.program.small import shallow
from zlaunch.parity.small_model import deepest
from zlaunch.parity.trial import Trial
from zlaunch.process import die_with_parent

_TIMEOUT = 240
"""Seconds after which a process counts as one that hangs."""


def compare(trial: Trial, directory: Path) -> dict[str, Any]:
    """Return a `Comparison`, or `failure`: why there is none. The directory gets what the processes write."""
    began = time.monotonic()
    torch.set_num_threads(1)  # and no thread before the forks
    try:
        trial = replace(trial, workload=shallow(trial.workload))
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
    found = [*of_gradients(engine, expected, another), *of_steps(engine, steps)]
    return {
        "distances": [asdict(distance) for distance in found],
        "parameters": expected.parameters,
        "layers": deepest(trial.workload.model),
        "optimizer": engine.optimizer,
        "unreached": sorted({*expected.gradients[0]} - expected.reached),
        "seconds": time.monotonic() - began,
    }


def _read(directory: Path, name: str) -> Measured:
    """Read what a fork of this very program wrote."""
    measured: Measured = torch.load(directory / name, weights_only=False)
    return measured


def _engine(directory: Path) -> Measured:
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
