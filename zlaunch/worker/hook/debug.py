"""Wait for an editor before the script's first line, in one rank; lift the timeouts of the others.

Only the standard library is imported here, and debugpy in the one rank that waits.
"""

import functools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from zlaunch.rundir import phases
from zlaunch.worker.hook.debug_timeouts import PATIENCE, PATIENT
from zlaunch.worker.hook.heartbeat import current_heartbeat

if TYPE_CHECKING:
    from zlaunch.rundir.record import DebugRecord

VARIABLE = "ZLAUNCH_DEBUG"
UNAVAILABLE = 69

GROUPS = "torch.distributed.distributed_c10d"
_WITH_TIMEOUT = ("init_process_group", "new_group", "split_group", "monitored_barrier", "_set_pg_timeout")
_QUIET = "PYDEVD_DISABLE_FILE_VALIDATION"


def debug_environment(debug: "DebugRecord | None") -> dict[str, str]:
    """Make the variables for the script's process of every rank if one rank is debugged."""
    if debug is None:
        return {}
    return {**PATIENT, VARIABLE: json.dumps(debug)}


def lift_timeouts(groups: ModuleType) -> None:
    """Lift the timeouts of process groups, also those that scripts and the Trainer's `ddp_timeout` pass."""
    for name in _WITH_TIMEOUT:
        if (function := vars(groups).get(name)) is not None:
            setattr(groups, name, _patient(function))


def _patient(function: Callable[..., object]) -> Callable[..., object]:
    import inspect

    signature = inspect.signature(function)

    @functools.wraps(function)
    def patient(*args: object, **kwargs: object) -> object:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:  # the function raises a better one
            return function(*args, **kwargs)
        given.arguments["timeout"] = PATIENCE
        return function(*given.args, **given.kwargs)

    return patient


def await_editor(text: str) -> None:
    """Listen and wait for an editor if this is the rank to debug; end the rank if it cannot listen."""
    debug: DebugRecord = json.loads(text)
    if int(os.environ["RANK"]) != debug["rank"]:
        return
    from zlaunch.hosts.machine.ports import LOOPBACK  # imports socket, which would delay every rank

    heartbeat, settrace = current_heartbeat(), sys.settrace
    try:
        with _without_warning():
            import debugpy

            debugpy.configure(subProcess=False)
            debugpy.listen((LOOPBACK, debug["port"]))
    except (ImportError, OSError, RuntimeError) as error:
        where = f"{LOOPBACK}:{debug['port']}"
        os.write(2, f"error: cannot listen for a debugger on {where}: {error}\n".encode())
        os._exit(UNAVAILABLE)
    os.register_at_fork(after_in_child=functools.partial(_stop_tracing, settrace))
    if heartbeat is None:
        debugpy.wait_for_client()
        return
    before = heartbeat.enter(phases.ATTACHING)
    debugpy.wait_for_client()
    heartbeat.enter(before)


@contextmanager
def _without_warning() -> Iterator[None]:
    """Suppress the debugger's warning that the standard library is frozen, which is not debugged."""
    before = os.environ.get(_QUIET)
    os.environ[_QUIET] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_QUIET]
        else:
            os.environ[_QUIET] = before


def _stop_tracing(settrace: Callable[[None], None]) -> None:
    """Let a forked process, such as a DataLoader's worker, ignore breakpoints.

    The debugger's threads do not exist there, so it would stop forever. `settrace` is Python's own: the
    debugger replaces it by one that warns.
    """
    settrace(None)
    threading.settrace(None)
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None:
        monitoring.set_events(monitoring.DEBUGGER_ID, 0)
        for name, event in vars(monitoring.events).items():
            if not name.startswith("_") and event.bit_count() == 1:
                monitoring.register_callback(monitoring.DEBUGGER_ID, event, None)
