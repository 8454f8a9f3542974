"""Hosts of a bed: network namespaces on a bridge, each with a loopback and an address of its own.

A network is locked by the process that made it, however that ends. What a killed run has left has no lock, and
the next one deletes it.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

LOCKS = Path("/run/zlaunch-beds")
"""The file of a network is named like its bridge, and names its namespaces. It stays, so that a lock is one."""
_MOST = 250


@dataclass(frozen=True)
class Network:
    """A bridge, and the namespaces on it."""

    bridge: str
    subnet: str
    hosts: tuple[str, ...]

    @property
    def number(self) -> int:
        """What tells it from other networks of its kind on this machine."""
        return int(self.subnet.rpartition(".")[2])

    @property
    def here(self) -> str:
        """The address of this machine."""
        return f"{self.subnet}.254"

    def address(self, host: str) -> str:
        """The address of a host."""
        return f"{self.subnet}.{self.hosts.index(host) + 1}"

    def space(self, host: str) -> str:
        """The namespace of a host; its interfaces are `lo` and `eth0`."""
        return f"{host}-{self.number}"

    @contextmanager
    def unplugged(self, host: str) -> Iterator[None]:
        """Take down the link of a host for a while."""
        _ip("link", "set", self._link(host), "down")
        try:
            yield
        finally:
            _ip("link", "set", self._link(host), "up")

    @contextmanager
    def narrowed(self, host: str, mtu: int) -> Iterator[None]:
        """Let only smaller packets pass on the way to and from a host, whose own interface does not know."""
        _ip("link", "set", self._link(host), "mtu", str(mtu))
        try:
            yield
        finally:
            _ip("link", "set", self._link(host), "mtu", "1500")

    @contextmanager
    def slowed(self, host: str, rate: str) -> Iterator[None]:
        """Let the link of a host carry only so much for a while: `50mbit`."""
        device = ("dev", self._link(host), "root")
        shape = ("tbf", "rate", rate, "burst", "64kb", "latency", "400ms")
        subprocess.run(["tc", "qdisc", "add", *device, *shape], check=True)
        try:
            yield
        finally:
            subprocess.run(["tc", "qdisc", "del", *device], check=True)

    @contextmanager
    def closed_ports(self, host: str, to: str) -> Iterator[None]:
        """Let a host send nothing to the ports of another one for a while, except to those below 1024."""
        rule = ("to", self.address(to), "ipproto", "tcp", "dport", "1024-65534", "pref", "10", "unreachable")
        _ip("-n", self.space(host), "rule", "add", *rule)
        try:
            yield
        finally:
            _ip("-n", self.space(host), "rule", "del", *rule)

    def _link(self, host: str) -> str:
        return f"{self.bridge}-{self.hosts.index(host) + 1}"

    def _make(self) -> None:
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("addr", "add", f"{self.here}/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        for host in self.hosts:
            space = self.space(host)
            _ip("netns", "add", space)
            _ip("link", "add", self._link(host), "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", self._link(host), "master", self.bridge, "up")
            _ip("-n", space, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")


def network(undo: ExitStack, bridge: str, subnet: str, hosts: tuple[str, ...]) -> Network:
    """Make a network whose bridge and subnet begin like this, after deleting those of killed runs."""
    _delete_left()
    for number in (1 + (os.getpid() + tried) % _MOST for tried in range(_MOST)):
        made = Network(f"{bridge}{number}", f"{subnet}.{number}", hosts)
        if (lock := _lock(made.bridge)) is None or made.bridge in _bridges():
            continue  # of another process, or of one that locks nothing
        undo.callback(os.close, lock)
        (LOCKS / made.bridge).write_text("\n".join(map(made.space, hosts)))
        undo.callback(_delete, made.bridge)
        made._make()
        return made
    raise AssertionError(f"{_MOST} networks are in use")


def inside(namespace: str, *argv: object) -> list[str]:
    """A command in a namespace that dies with the thread that starts it."""
    return [*DIES_WITH_US, "ip", "netns", "exec", namespace, *(str(word) for word in argv)]


DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""Before a command: even a killed run leaves none of these programs."""


def missing(programs: Iterable[str]) -> list[str]:
    """Name what this machine lacks for a bed."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    lacking = [program for program in programs if shutil.which(program, path=path) is None]
    return lacking if os.geteuid() == 0 else [*lacking, "root"]


def _lock(bridge: str) -> int | None:
    """Lock a network for this process; None if another one has it."""
    LOCKS.mkdir(exist_ok=True)
    file = os.open(LOCKS / bridge, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _bridges() -> set[str]:
    return {path.parent.name for path in Path("/sys/class/net").glob("*/bridge")}


def _delete_left() -> None:
    """Delete the networks of processes that are gone."""
    for file in LOCKS.glob("*"):
        if file.read_text() and (lock := _lock(file.name)) is not None:
            _delete(file.name)
            os.close(lock)


def _delete(bridge: str) -> None:
    """Kill what runs on the hosts of a network, and delete it."""
    for space in (LOCKS / bridge).read_text().split():
        pids = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=False)
        for pid in pids.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if Path("/run/netns", space).exists():
            _ip("netns", "del", space)
    for link in Path("/sys/class/net").glob(f"{bridge}-*"):
        with contextlib.suppress(subprocess.CalledProcessError):  # it goes with its namespace
            _ip("link", "del", link.name)
    if bridge in _bridges():
        _ip("link", "del", bridge)
    (LOCKS / bridge).write_text("")


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)
