"""`zlaunch.launch.build_program`: make native ops ready on another host of a job, before its ranks start.

It gets an order on stdin, and tells on stdout what it does, as `zlaunch train` shows it for this machine. It
ends when its stdin is closed.
"""

import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from zlaunch.dsconfig.native_ops import OPS
from zlaunch.errors import ZlaunchError
from zlaunch.frozen import dataclass
from zlaunch.hosts.adapters import adapter_of
from zlaunch.hosts.agent.channel import Channel
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.hosts.machine.op_cache import OpCache
from zlaunch.launch.op_build import NotBuilt, OpBuild
from zlaunch.process import signals_as_exceptions
from zlaunch.rundir.layout import RunDir
from zlaunch.worker.node import own_streams

ORDER_SECONDS = 60.0
_BUSY_SECONDS = 0.5
_GOODBYE_SECONDS = 5.0


@dataclass(frozen=True)
class BuildOrder:
    """What a host is told."""

    ops: tuple[str, ...]
    python: Path
    """The interpreter of the ranks."""
    cache: OpCache
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the ranks; they may be secret, so they are in no command line."""


class _Teller:
    """Shows on the host of zlaunch what is done here, and ends this process when that is gone."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._told = 0.0

    def note(self, text: str, label: str | None = None) -> None:
        self._channel.send({"note": text, "label": label})

    def busy(self, what: str, elapsed: str) -> None:
        self._channel.receive()
        if self._channel.closed:
            signal.raise_signal(signal.SIGTERM)
        elif time.monotonic() - self._told > _BUSY_SECONDS:
            self._told = time.monotonic()
            self._channel.send({"busy": what, "elapsed": elapsed})


def main(channel: Channel) -> None:
    """Carry out one order, and tell how it ended."""
    message = channel.wait_for("build", ORDER_SECONDS)
    if message is None:
        return
    order: BuildOrder = adapter_of(BuildOrder).validate_python(message["build"])
    with tempfile.TemporaryDirectory() as folder:
        logs = RunDir(Path(folder))
        logs.logs.mkdir()
        channel.send({"ended": _build(order, logs, _Teller(channel))})
        channel.close(_GOODBYE_SECONDS)


def _build(order: BuildOrder, logs: RunDir, teller: _Teller) -> Mapping[str, object]:
    """Return what went wrong; nothing if all is ready."""
    try:
        ops, environment = [OPS[name] for name in order.ops], {**os.environ, **order.environment}
        build = OpBuild(ops, inspect_python(order.python), order.cache, logs, environment, teller)
        stopped_by = build.run()
    except NotBuilt as error:
        said = error.log.read_text("utf-8", "replace")
        return {"message": error.message, "hint": error.advice, "log": said, "name": error.log.name}
    except ZlaunchError as error:
        return {"message": error.message, "hint": error.hint}
    except OSError as error:
        return {"message": f"{error.strerror}: {error.filename}", "hint": None}
    return {} if stopped_by is None else {"message": f"stopped by {stopped_by.name}", "hint": None}


if __name__ == "__main__":
    with signals_as_exceptions():
        main(own_streams())
    sys.exit(0)
