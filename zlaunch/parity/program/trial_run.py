"""A trial: two ranks, then plain torch. Each is a fork, so that the packages are imported once."""

import contextlib
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from deepspeed.accelerator import get_accelerator

from zlaunch.dsconfig.native_ops import OPS
from zlaunch.estimate.rehearsal.model import DTYPES, NotRehearsed
from zlaunch.parity.program import rank, reference, saved_checkpoint
from zlaunch.parity.program.measured import Measured, of_gradients, of_steps
from zlaunch.parity.program.small import shallow
from zlaunch.parity.small_model import deepest
from zlaunch.parity.trial import Trial
from zlaunch.parity.verdict import Distance
from zlaunch.process import die_with_parent

Works = Mapping[str, Callable[[], object]]
"""Name → what a fork does under it, and whose result it writes."""

_ALONE, _EXPORT = "resuming on 1 rank", "export"
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
        return {"failure": f"transformers cannot build a narrow model of this type: {_error_line(error)}"}
    if (failure := _load_ops(trial.ops)) is not None:
        return {"failure": failure}
    wanted = DTYPES[trial.precision]
    other = torch.float32
    ranks: Works = {
        f"rank {number}": partial(rank.train, trial, number, wanted, directory) for number in (0, 1)
    }
    if failures := _train(directory, ranks):
        return {"failure": failures[0]}
    engine = _engine(directory)
    works: Works = {
        "expected": partial(reference.gradients, trial, engine, wanted, wanted),
        "other": partial(reference.gradients, trial, engine, wanted, other, reorder=wanted is other),
        "steps": partial(reference.updates, trial, engine, wanted),
    }
    if failures := _train(directory, works):
        return {"failure": failures[0]}
    expected, another, steps = (_read_fork(directory, name) for name in works)
    found = [*of_gradients(engine, expected, another), *of_steps(engine, steps)]
    unsaved: list[str] = []
    if trial.saves:
        found += _saved(trial, engine, directory, unsaved)
    return {
        "distances": [asdict(distance) for distance in found],
        "parameters": expected.parameters,
        "layers": deepest(trial.workload.model),
        "optimizer": engine.optimizer,
        "unreached": sorted({*expected.gradients[0]} - expected.reached),
        "unsaved": unsaved,
        "seconds": time.monotonic() - began,
    }


def _load_ops(names: Sequence[str]) -> str | None:
    """Load native ops before the forks; return why one cannot be.

    Each process that loads one starts ninja, under a lock, which stays if the process is killed meanwhile.
    """
    try:
        for name in names:
            get_accelerator().create_op_builder(OPS[name].builder).load()
    except Exception as error:  # noqa: BLE001 - a compiler may fail in any way
        return _error_line(error)
    return None


def _saved(trial: Trial, engine: Measured, directory: Path, unsaved: list[str]) -> Iterator[Distance]:
    """Compare what comes of the checkpoint; `unsaved` gets why something of it could not be compared."""
    wanted = DTYPES[trial.precision]
    again: Works = {
        f"resuming on rank {number}": partial(rank.resume, trial, number, wanted, directory, rank.TAG)
        for number in (0, 1)
    }
    alone: Works = {_ALONE: partial(saved_checkpoint.resumed_on_one_rank, trial, engine, wanted, directory)}
    export: Works = {
        _EXPORT: partial(saved_checkpoint.exported, trial, engine.masters[-2], wanted, directory)
    }
    if trial.workload.lora is not None:
        export = {}
        unsaved.append("export of the adapter")
    if trial.stands_in and trial.workload.ds_config["zero_optimization"]["stage"] == 3:
        # Stage 3 loads the step of torch's Adam into one tensor, which each sub-group increments.
        alone = {}
        unsaved.append(f"{_ALONE}: DeepSpeed's FusedAdam counts steps otherwise than torch's AdamW")
    failed = _train(directory, again, alone, export)
    unsaved += failed.values()
    if 0 not in failed:
        yield from saved_checkpoint.of_resumed(trial, engine, _read_fork(directory, "resuming on rank 0"))
    if alone and 1 not in failed:
        yield from _read_fork(directory, _ALONE)
    if export and 2 not in failed:
        yield from _read_fork(directory, _EXPORT)


def _read_fork(directory: Path, name: str) -> Any:
    """Read what a fork of this very program wrote."""
    return torch.load(directory / name, weights_only=False)


def _engine(directory: Path) -> Measured:
    """Return what the first rank measured, with the other's gradients, both losses, and the worse weights."""
    engine: Measured = _read_fork(directory, "rank 0")
    second: Measured = _read_fork(directory, "rank 1")
    for step, loss in enumerate(second.losses):
        engine.losses[step] = (engine.losses[step] + loss) / 2
        engine.gradients[step] = {**second.gradients[step], **engine.gradients[step]}
        for name, apart in second.stale[step].items():
            engine.stale[step][name] = max(engine.stale[step][name], apart)
    return engine


def _train(directory: Path, *groups: Works) -> dict[int, str]:
    """Do all works at once, in forks that write what they return; return why groups of them failed.

    With one of a group, the others end.
    """
    running = {
        _fork(work, directory / name): (name, number)
        for number, works in enumerate(groups)
        for name, work in works.items()
    }
    deadline, failures = time.monotonic() + _TIMEOUT, dict[int, str]()
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            name, number = running.pop(pid)
            if status and number not in failures:
                failures[number] = _why_failed(name, os.waitstatus_to_exitcode(status), directory)
        elif time.monotonic() > deadline:
            for name, number in running.values():
                failures.setdefault(number, f"{name} took more than {_TIMEOUT} s")
        else:
            time.sleep(0.01)
        for other, (_, number) in list(running.items()):
            if number in failures:
                os.kill(other, signal.SIGKILL)
                os.waitpid(other, 0)
                del running[other]
    return failures


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
            file.write_text(_error_line(error).removeprefix("RuntimeError: "))
    finally:
        os._exit(status)


def _why_failed(name: str, status: int, directory: Path) -> str:
    if status < 0:
        return f"{name} ended with {signal.Signals(-status).name}"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return f"{name}: {(directory / name).read_text()}"
    return f"{name} ended with status {status}"


def _error_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip().splitlines()[-1]
