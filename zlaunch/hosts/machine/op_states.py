"""The native ops of a job on a host: compiled, to be compiled, or locked."""

import os
from collections.abc import Iterable, Mapping
from typing import Literal

from zlaunch.dsconfig.native_ops import OPS, NativeOp
from zlaunch.frozen import dataclass
from zlaunch.hosts.machine.build_lock import LockState, lock_age, lock_holder, lock_state
from zlaunch.hosts.machine.compiled_ops import CompiledOps
from zlaunch.hosts.machine.interpreter import Interpreter
from zlaunch.hosts.machine.op_cache import find_op_cache
from zlaunch.hosts.machine.resources import Machine


@dataclass(frozen=True, slots=True)
class OpState:
    """A native op in the cache of a host."""

    state: Literal["ready", "missing", "stale", "locked", "left-lock"]
    why: str | None = None
    """Why it is stale."""
    lock: str | None = None
    age: float = 0.0
    """Of the lock, in seconds."""
    holder: int | None = None
    """The process that has the lock; None if it cannot be seen from there."""


_OF_LOCK: Mapping[LockState, Literal["locked", "left-lock"]] = {"held": "locked", "left": "left-lock"}


def look_at_ops(
    names: Iterable[str], python: Interpreter, machine: Machine, environ: Mapping[str, str]
) -> dict[str, OpState]:
    """Find out the state of ops by name."""
    cache = find_op_cache(python, machine, environ)
    path = os.pathsep.join([*python.not_on_path(environ), environ.get("PATH", os.defpath)])
    ops = CompiledOps(cache.folder, python, cache.key, path)
    return {name: _look_at(OPS[name], ops) for name in names}


def _look_at(op: NativeOp, ops: CompiledOps) -> OpState:
    for lock in (ops.folder / name / "lock" for name in (op.name, *op.along)):
        if (state := _OF_LOCK.get(lock_state(lock, ops.python))) is not None:
            return OpState(state, lock=str(lock), age=lock_age(lock), holder=lock_holder(lock))
    why = ops.why_not_ready(op)
    if why is None:
        return OpState("ready")
    return OpState("stale", why) if why else OpState("missing")
