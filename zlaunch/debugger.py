"""What `--debug` needs of this machine, and what an editor needs to know."""

import json
import socket
from collections.abc import Iterator

from zlaunch.errors import Unavailable
from zlaunch.plan import LaunchPlan, Listener
from zlaunch.probe import is_importable


def check_debugger(listener: Listener, is_here: bool) -> None:
    """Raise Unavailable if debugpy is not installed, or its port is taken on this machine."""
    if not is_importable("debugpy"):
        raise Unavailable("`--debug` needs debugpy, which is not installed here", "`pip install debugpy`")
    if not is_here:
        return
    error = _trouble(listener.host, listener.port)
    if error is not None:
        free = next((port for port in _nearby(listener) if _trouble(listener.host, port) is None), None)
        raise Unavailable(
            f"`--debug {listener.rank}:{listener.port}`: cannot listen there: {error}",
            f"write `--debug {listener.rank}:{free}`" if free else None,
        )


def _nearby(listener: Listener) -> range:
    first = max(listener.port + 1, 1 << 10)
    return range(first, min(first + 100, 1 << 16))


def _trouble(host: str, port: int) -> str | None:
    """Try to listen; say why that does not work. A port that was in use until now is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            return error.strerror or str(error)
    return None


def attach_lines(plan: LaunchPlan, directory: str) -> Iterator[str]:
    """Write what is pasted into an editor that speaks the Debug Adapter Protocol."""
    listener = plan.debug
    if listener is None:
        return
    name = plan.module or plan.script[0].rpartition("/")[2]
    yield "paste into `configurations` of .vscode/launch.json, which nvim-dap reads too:"
    configuration = {
        "name": f"zlaunch: rank {listener.rank} of {name}",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": listener.host, "port": listener.port},
        "pathMappings": [{"localRoot": directory, "remoteRoot": directory}],
        "justMyCode": False,
        "subProcess": False,
    }
    yield from json.dumps(configuration, indent=2).splitlines()
