"""Examine one host: `zlaunch.hosts.agent.host QUESTIONS`, which zlaunch runs on other hosts over ssh.

First it prints the facts; then it answers commands on stdin, one line each, until there are no more. Each
answer is a line of JSON behind a mark; what a login shell prints is ignored.
"""

import json
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from zlaunch.hosts.agent.questions import read_questions
from zlaunch.hosts.machine.facts import gather
from zlaunch.hosts.machine.network import measure_mtu, source_towards

MARK = "zlaunch answers "
CONNECT_SECONDS = 5.0
_LISTENING: list[socket.socket] = []
"""Keeps the sockets open on which this host listens."""


def _clock() -> Any:
    return time.time()


def _listen(port: str) -> Any:
    """Listen as the first rank does, on all addresses; return the port, or an error."""
    try:
        server = socket.create_server(("", int(port)), backlog=128)
    except OSError as error:
        return {"error": error.strerror or str(error)}
    _LISTENING.append(server)
    return {"port": server.getsockname()[1]}


def _connect(port: str, *addresses: str) -> Any:
    """Try to connect to each address: its error, or None, and the own address that leads there."""
    return {one: [_try(one, int(port)), source_towards(one)] for one in addresses}


def _try(address: str, port: int) -> str | None:
    try:
        with socket.create_connection((address, port), timeout=CONNECT_SECONDS):
            return None
    except OSError as error:
        return error.strerror or str(error)


COMMANDS: Mapping[str, Callable[..., Any]] = {
    "clock": _clock,
    "listen": _listen,
    "connect": _connect,
    "mtu": measure_mtu,
}


def main(text: str) -> None:
    """Answer the questions, then commands."""
    _answer(gather(read_questions(text)))
    for line in sys.stdin:
        command, *words = line.split()
        _answer(COMMANDS[command](*words))


def _answer(value: Any) -> None:
    sys.stdout.write(f"{MARK}{json.dumps(value)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
