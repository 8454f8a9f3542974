"""The network interfaces of a host, and which of them leads to an address. Linux only, without programs."""

import contextlib
import fcntl
import socket
import struct
from pathlib import Path
from typing import Any

_SIOCGIFADDR = 0x8915
_NET = Path("/sys/class/net")
_UP = 1


def interfaces(folder: Path = _NET) -> list[dict[str, Any]]:
    """List the interfaces that are up: `name`, `address` (IPv4), `mtu`, `speed` in Mbit/s if it is known."""
    return [_interface(one) for one in sorted(folder.glob("*")) if _number(one / "flags", 16) & _UP]


def _interface(folder: Path) -> dict[str, Any]:
    speed = _number(folder / "speed")  # -1, or an error, for what has none
    return {
        "name": folder.name,
        "address": _address(folder.name),
        "mtu": _number(folder / "mtu"),
        "speed": speed if speed > 0 else None,
        "physical": (folder / "device").exists(),
    }


def _number(file: Path, base: int = 10) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(file.read_text().strip(), base)
    return 0


def _address(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, contextlib.suppress(OSError):
        found = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        return socket.inet_ntoa(found[20:24])
    return None


def source_towards(address: str) -> str | None:
    """The own address from which packets to another one leave; None without a route. Nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asking, contextlib.suppress(OSError):
        asking.connect((address, 9))
        return str(asking.getsockname()[0])
    return None
