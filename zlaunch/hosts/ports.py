"""Ports of this machine."""

import socket

LOOPBACK = "127.0.0.1"
"""Where an editor is awaited: whoever reaches a debugger runs code as its user."""


def free_port() -> int:
    """Find a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def why_taken(port: int) -> str | None:
    """Try to listen on the loopback; say why that does not work. A port that was in use until now is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen()
        except OSError as error:
            return error.strerror or str(error)
    return None
