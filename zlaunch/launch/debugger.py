"""What `--debug` needs of a rank's machine, and what an editor needs to know."""

import json
import socket
from collections.abc import Iterator

from zlaunch.errors import Unavailable
from zlaunch.hosts.machine import HostSurvey, local_names
from zlaunch.hosts.ports import LOOPBACK, why_taken
from zlaunch.hosts.probe import is_importable
from zlaunch.launch.plan import LaunchPlan, Listener

PACKAGE = "debugpy"


def check_debugger(listener: Listener, there: HostSurvey | None) -> None:
    """Raise Unavailable if debugpy is not installed, or its port is taken; on another host, if it said so."""
    if not is_importable(PACKAGE) if there is None else PACKAGE in there.room.missing:
        where = "here" if there is None else f"on {listener.host}"
        raise Unavailable(
            f"`--debug` needs {PACKAGE}, which is not installed {where}", f"`pip install {PACKAGE}`"
        )
    error = why_taken(listener.port) if there is None else there.debug_trouble
    if error is not None:
        where = "there" if there is None else f"on {listener.host}"
        other = _another_port(listener, is_here=there is None)
        raise Unavailable(
            f"`--debug {listener.rank}:{listener.port}`: cannot listen {where}: {error}",
            f"write `--debug {listener.rank}:{other}`" if other else None,
        )


def _another_port(listener: Listener, is_here: bool) -> int | None:
    """Find a free port here; which of them are free on another host, nobody has asked."""
    first = max(listener.port + 1, 1 << 10)
    nearby = range(first, min(first + 100, 1 << 16))
    return (
        next((port for port in nearby if not why_taken(port)), None) if is_here else next(iter(nearby), None)
    )


def attach_lines(plan: LaunchPlan, directory: str) -> Iterator[str]:
    """Write what is pasted into an editor that speaks the Debug Adapter Protocol."""
    listener = plan.debug
    if listener is None:
        return
    if listener.host not in local_names(socket.gethostname()):
        tunnel = f"ssh -N -L {listener.port}:{LOOPBACK}:{listener.port} {listener.host}"
        yield f"where the editor runs, keep this open: `{tunnel}`"
    name = plan.module or plan.script[0].rpartition("/")[2]
    yield "paste into `configurations` of .vscode/launch.json, which nvim-dap reads too:"
    configuration = {
        "name": f"zlaunch: rank {listener.rank} of {name}",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": LOOPBACK, "port": listener.port},
        "pathMappings": [{"localRoot": directory, "remoteRoot": directory}],
        "justMyCode": False,
        "subProcess": False,
    }
    yield from json.dumps(configuration, indent=2).splitlines()
