"""The network of a host: its interfaces, which of them leads to an address, and how it was reached.

Linux only, without programs.
"""

import contextlib
import fcntl
import os
import shutil
import socket
import struct
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import NamedTuple

from zlaunch.frozen import dataclass
from zlaunch.process import answer_of
from zlaunch.whereabouts import Whereabouts, whereabouts

_SIOCGIFADDR, _SIOCGIFFLAGS, _SIOCGIFMTU = 0x8915, 0x8913, 0x8921
_NET = Path("/sys/class/net")
_UP = 1
_HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}
"""Bytes of the IP and ICMP headers."""
PING_SECONDS = 5.0


SOCKET_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
"""Variables that choose an interface."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface that is up."""

    name: str
    address: str | None
    """Its IPv4 address."""
    mtu: int
    speed: int | None = None
    """In Mbit/s, if it is known."""


@dataclass(frozen=True, slots=True)
class Network:
    """The network of a host, as its ranks find it."""

    hostname: str
    interfaces: tuple[Interface, ...]
    chosen: Mapping[str, str] = field(default_factory=dict)
    """Variable that chooses an interface → its value."""
    identity: Whereabouts | None = None

    @property
    def first_address(self) -> str | None:
        """The address that DeepSpeed's runner gives to ranks: the first word of `hostname -I`."""
        addresses = (interface.address for interface in self.interfaces if interface.name != "lo")
        return next(filter(None, addresses), None)


class Connection(NamedTuple):
    """Both ends of the connection by which a program was started; None for what is not known."""

    seen_from: str | None
    """The address of the machine that asked."""
    reached_at: str | None
    """The address of this host, as the other machine knows it."""


UNKNOWN = Connection(None, None)


def connection(environ: Mapping[str, str]) -> Connection:
    """Read the variables of sshd, or those of Slurm: a step also has the variables of a login elsewhere."""
    words = environ.get("SSH_CONNECTION", "").split()
    if len(words) == 4 and "SLURM_STEP_ID" not in environ:
        return Connection(words[0], words[2])
    return Connection(environ.get("SLURM_LAUNCH_NODE_IPADDR"), None)


def find_network(environ: Mapping[str, str]) -> Network:
    """Describe the network as a program with this environment finds it."""
    chosen = {name: environ[name] for name in SOCKET_VARIABLES if name in environ}
    return Network(socket.gethostname(), tuple(interfaces()), chosen, whereabouts())


def interfaces() -> list[Interface]:
    """List the interfaces that are up.

    The kernel is asked: in a network namespace, /sys may be that of another one.
    """
    names = sorted(name for _, name in socket.if_nameindex())
    return [_interface(name) for name in names if _is_up(name)]


def _is_up(name: str) -> bool:
    flags = _ask_kernel(name, _SIOCGIFFLAGS)
    return flags is not None and bool(struct.unpack("h", flags[:2])[0] & _UP)


def _interface(name: str) -> Interface:
    interface = Interface(name, None, 0, _speed(_NET / name / "speed"))
    if (address := _ask_kernel(name, _SIOCGIFADDR)) is not None:
        interface = replace(interface, address=socket.inet_ntoa(address[4:8]))
    if (mtu := _ask_kernel(name, _SIOCGIFMTU)) is not None:
        interface = replace(interface, mtu=struct.unpack("i", mtu[:4])[0])
    return interface


def _speed(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):  # an error for what has none, or -1
        return max(int(file.read_text()), 0) or None
    return None


def _ask_kernel(name: str, what: int) -> bytes | None:
    """What follows the name in the answer of the kernel; None for an error, as without an address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, contextlib.suppress(OSError):
        return bytes(fcntl.ioctl(asking, what, struct.pack("256s", name.encode()[:15]))[16:])
    return None


def source_towards(address: str) -> str | None:
    """The own address from which packets to another one leave; None without a route. Nothing is sent."""
    with socket.socket(_family(address), socket.SOCK_DGRAM) as asking, contextlib.suppress(OSError):
        asking.connect((address, 9))
        return str(asking.getsockname()[0])
    return None


def _family(address: str) -> socket.AddressFamily:
    if ":" in address:
        return socket.AF_INET6
    return socket.AF_INET


def measure_mtu(address: str) -> tuple[int, str]:
    """Ping an address with the largest packet that the interface towards it takes, and no fragments.

    Returns the size of the packet, and `arrives`, `lost` if only small ones arrive, or why that is not known:
    `no answer` even to a small one, `no ping`, or the error of `ping`.
    """
    source = source_towards(address)
    leading = [interface for interface in interfaces() if source and interface.address == source]
    mtu = next((interface.mtu for interface in leading), 0)
    ping = shutil.which("ping", path=f"{os.environ.get('PATH', os.defpath)}:/usr/bin:/bin:/sbin")
    if ping is None:
        return mtu, "no ping"
    if not mtu:
        return mtu, "no answer"
    if _ping_error(ping, address, mtu - _HEADERS[_family(address)]) is None:
        return mtu, "arrives"
    return mtu, _ping_error(ping, address, 8) or "lost"


def _ping_error(ping: str, address: str, size: int) -> str | None:
    """Return None if a packet is answered, else `no answer`, or the error that `ping` ended with."""
    options = ("-n", "-q", "-M", "do", "-c", "2", "-i", "0.2", "-W", "1", "-s", str(size))
    with contextlib.suppress(OSError):
        done = answer_of([ping, *options, address], "", PING_SECONDS)
        if done.returncode > 1:
            return (done.err.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        if done.returncode == 0:
            return None
    return "no answer"
