"""The native ops of a job on a host: compiled, to be compiled, or locked."""

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from zlaunch.dsconfig.native_ops import OPS, NativeOp
from zlaunch.hosts.machine.compiled_ops import CompiledOps
from zlaunch.hosts.machine.interpreter import Interpreter
from zlaunch.hosts.machine.op_cache import find_op_cache, is_stale, lock_holder
from zlaunch.hosts.machine.resources import Machine


def look_at_ops(
    names: Iterable[str], python: Interpreter, machine: Machine, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Name → `state` (ready, missing, stale, locked, left-lock) and what is known about it."""
    cache = find_op_cache(python, machine, environ)
    path = os.pathsep.join([*python.not_on_path(environ), environ.get("PATH", os.defpath)])
    ops = CompiledOps(cache.folder, python, cache.key, path)
    return {name: _look_at(OPS[name], ops) for name in names}


def _look_at(op: NativeOp, ops: CompiledOps) -> dict[str, Any]:
    for lock in (ops.folder / name / "lock" for name in (op.name, *op.along)):
        if lock.exists():
            age = time.time() - lock.stat().st_mtime
            state = "left-lock" if is_stale(lock) else "locked"
            return {"state": state, "lock": str(lock), "age": age, "holder": lock_holder(lock)}
    why = ops.why_not_ready(op)
    state = "ready" if why is None else "stale" if why else "missing"
    return {"state": state, "why": why, "folder": str(ops.folder)}
