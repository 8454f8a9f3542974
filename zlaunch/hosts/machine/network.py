"""The network interfaces of a host, and which of them leads to an address. Linux only, without programs."""

import contextlib
import fcntl
import os
import shutil
import socket
import struct
from pathlib import Path
from typing import Any

from zlaunch.process import answer_of

_SIOCGIFADDR, _SIOCGIFFLAGS, _SIOCGIFMTU = 0x8915, 0x8913, 0x8921
_NET = Path("/sys/class/net")
_UP = 1
_HEADERS = {4: 28, 6: 48}
"""Bytes of the IP and ICMP headers."""
PING_SECONDS = 5.0


def interfaces() -> list[dict[str, Any]]:
    """List the interfaces that are up: `name`, `address` (IPv4), `mtu`, `speed` in Mbit/s if it is known.

    The kernel is asked: in a network namespace, /sys may be that of another one.
    """
    found = [_interface(name) for _, name in sorted(socket.if_nameindex())]
    return [one for one in found if one.pop("flags") & _UP]


def _interface(name: str) -> dict[str, Any]:
    address, flags, mtu = (_ask(name, what) for what in (_SIOCGIFADDR, _SIOCGIFFLAGS, _SIOCGIFMTU))
    return {
        "name": name,
        "address": address and socket.inet_ntoa(address[4:8]),
        "mtu": struct.unpack("i", mtu[:4])[0] if mtu else 0,
        "flags": struct.unpack("h", flags[:2])[0] if flags else 0,
        "speed": _speed(_NET / name / "speed"),
    }


def _speed(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):  # an error for what has none, or -1
        return max(int(file.read_text()), 0) or None
    return None


def _ask(name: str, what: int) -> bytes | None:
    """What follows the name in the answer of the kernel; None for an error, as without an address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, contextlib.suppress(OSError):
        return bytes(fcntl.ioctl(asking, what, struct.pack("256s", name.encode()[:15]))[16:])
    return None


def source_towards(address: str) -> str | None:
    """The own address from which packets to another one leave; None without a route. Nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asking, contextlib.suppress(OSError):
        asking.connect((address, 9))
        return str(asking.getsockname()[0])
    return None


def measure_mtu(address: str) -> tuple[int, str]:
    """Ping an address with the largest packet that the interface towards it takes, and no fragments.

    Returns the size of the packet, and `arrives`, `lost` if only small ones arrive, or why that is not known:
    `no answer` even to a small one, `no ping`, or the error of `ping`.
    """
    source = source_towards(address)
    mtu = next((int(one["mtu"]) for one in interfaces() if source and one["address"] == source), 0)
    ping = shutil.which("ping", path=f"{os.environ.get('PATH', os.defpath)}:/usr/bin:/bin:/sbin")
    if ping is None or not mtu:
        return mtu, "no ping" if ping is None else "no answer"
    headers = _HEADERS[6 if ":" in address else 4]
    if _answer(ping, address, mtu - headers) is None:
        return mtu, "arrives"
    return mtu, _answer(ping, address, 8) or "lost"


def _answer(ping: str, address: str, size: int) -> str | None:
    """Return None if a packet is answered, else `no answer`, or the error that `ping` ended with."""
    options = ("-n", "-q", "-M", "do", "-c", "2", "-i", "0.2", "-W", "1", "-s", str(size))
    with contextlib.suppress(OSError):
        done = answer_of([ping, *options, address], "", PING_SECONDS)
        if done.returncode > 1:
            return (done.err.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return "no answer" if done.returncode else None
    return "no answer"
