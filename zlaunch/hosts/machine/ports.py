"""Ports of this machine."""

import contextlib
import random
import socket

LOOPBACK = "127.0.0.1"
"""Where debuggers listen: who reaches a debugger can run code as its user."""

SELDOM_TAKEN = range(20_000, 32_768)
"""Below the ports that Linux gives to every connection and to who asks for any port."""


def free_port() -> int:
    """Find a port that is free now, and likely to be when a rank has imported its packages and listens."""
    for port in random.sample(SELDOM_TAKEN, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def why_taken(port: int) -> str | None:
    """Try to listen on the loopback; return the error if that fails.

    A port that was in use until a moment ago counts as free.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen()
        except OSError as error:
            return error.strerror or str(error)
    return None


def free_port_near(port: int) -> int | None:
    """Find a free port on the loopback, just above another one and above the privileged ones."""
    first = max(port + 1, 1 << 10)
    return next((near for near in range(first, min(first + 100, 1 << 16)) if not why_taken(near)), None)
