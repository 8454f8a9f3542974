"""The program on a host: `zlaunch.hosts.agent.program QUESTION`, which zlaunch starts over ssh or srun.

First it says which zlaunch it is, then the facts of its machine, or why there are none. After that it answers
requests on stdin until there are no more: JSON objects, whose `request` is a name and arguments, one a line.
"""

import json
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from zlaunch.errors import ZlaunchError
from zlaunch.hosts.agent import own_code
from zlaunch.hosts.machine.facts import Failure
from zlaunch.hosts.machine.network import measure_mtu, source_towards
from zlaunch.hosts.machine.question import read_question
from zlaunch.hosts.machine.survey import survey
from zlaunch.json_lines import answer

TRY_SECONDS = 5.0
"""How long to try to connect to an address of the first host."""
_LISTENING: list[socket.socket] = []
"""Keeps the sockets open on which this host listens."""


def _clock() -> float:
    return time.time()


def _listen(port: int) -> Mapping[str, Any]:
    """Listen as the first rank does, on all addresses; return the port, or an error."""
    try:
        server = socket.create_server(("", port), backlog=128)
    except OSError as error:
        return {"error": error.strerror or str(error)}
    _LISTENING.append(server)
    return {"port": server.getsockname()[1]}


def _connect(port: int, *addresses: str) -> Mapping[str, Any]:
    """Try to connect to each address: its error, or None, and the own address that leads there."""
    return {address: [_try(address, port), source_towards(address)] for address in addresses}


def _try(address: str, port: int) -> str | None:
    try:
        with socket.create_connection((address, port), timeout=TRY_SECONDS):
            return None
    except OSError as error:
        return error.strerror or str(error)


REQUESTS: Mapping[str, Callable[..., Any]] = {
    "clock": _clock,
    "listen": _listen,
    "connect": _connect,
    "mtu": measure_mtu,
}


def main(text: str) -> None:
    """Answer the question, then requests."""
    answer({own_code.MEMBER: own_code.own_code()})
    try:
        answer({"facts": survey(read_question(text))})
    except ZlaunchError as error:
        answer({"failure": Failure(error.message, error.hint)})
        return
    for line in sys.stdin:
        name, *arguments = json.loads(line)["request"]
        answer(REQUESTS[name](*arguments))


if __name__ == "__main__":
    main(sys.argv[1])
