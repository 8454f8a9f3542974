"""Hosts on one machine: network namespaces on a bridge, each with a real sshd.

Two of them are as this machine is. A third is poor: nearly no room in /dev/shm and in a directory of
its own, and who logs in may lock 64 KiB of memory. They share the file system, as the hosts of a cluster
share theirs. All traffic stays between addresses of the bridge.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("ip", "mpirun", "ssh", "ssh-keygen", "pdsh", "setpriv", "prlimit", "/usr/sbin/sshd")
NAMES = ("zlnode1", "zlnode2")
POOR = "zlnode3"
_NUMBER = os.getpid() % 250 + 1
"""Two beds at once, of two checkouts, have interfaces and addresses of their own."""
_SUBNET, _BRIDGE = f"10.77.{_NUMBER}", f"zlbridge{_NUMBER}"


@dataclass(frozen=True)
class Bed:
    """What a test needs: a PATH whose `ssh` knows the hosts, and their names."""

    programs: Path
    hostfile: Path
    own: Path
    """A directory that is another one on the poor host."""

    def environment(self) -> dict[str, str]:
        """The environment of someone who can log in to all hosts."""
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "GLOO_SOCKET_IFNAME": "eth0"}

    def unplugged(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Take down the link of a host for a while."""
        return _without_link((*NAMES, POOR).index(name) + 1)

    def closed_ports(self, name: str, to: str) -> contextlib.AbstractContextManager[None]:
        """Let a host send nothing to the ports of another one for a while, except to its sshd."""
        numbers = [(*NAMES, POOR).index(one) + 1 for one in (name, to)]
        return _with_closed_ports(f"{name}-{_NUMBER}", f"{_SUBNET}.{numbers[1]}")

    def processes(self, marker: str) -> list[int]:
        """The processes whose command line holds a marker."""
        found = subprocess.run(["pgrep", "-f", marker], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]


@contextmanager
def _without_link(number: int) -> Iterator[None]:
    _ip("link", "set", f"zlveth{_NUMBER}-{number}", "down")
    try:
        yield
    finally:
        _ip("link", "set", f"zlveth{_NUMBER}-{number}", "up")


@contextmanager
def _with_closed_ports(space: str, address: str) -> Iterator[None]:
    rule = ("to", address, "ipproto", "tcp", "dport", "1024-65534", "pref", "10", "unreachable")
    _ip("-n", space, "rule", "add", *rule)
    try:
        yield
    finally:
        _ip("-n", space, "rule", "del", *rule)


def missing() -> list[str]:
    """Name what this machine lacks for the bed."""
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    return lacking if os.geteuid() == 0 else [*lacking, "root"]


@contextmanager
def hosts(folder: Path) -> Iterator[Bed]:
    """Set the hosts up, and take everything away again."""
    with ExitStack() as undo:
        _bridge(undo)
        _keys(folder)
        own = folder / "own"
        own.mkdir()
        for number, name in enumerate((*NAMES, POOR), start=1):
            _host(undo, folder, number, name)
        for number, _ in enumerate((*NAMES, POOR), start=1):
            _wait_for(f"{_SUBNET}.{number}")
        yield Bed(_client(folder), _hostfile(folder), own)


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


def _bridge(undo: ExitStack) -> None:
    _ip("link", "add", _BRIDGE, "type", "bridge")
    undo.callback(_ip, "link", "del", _BRIDGE)
    _ip("addr", "add", f"{_SUBNET}.254/24", "dev", _BRIDGE)
    _ip("link", "set", _BRIDGE, "up")


def _keys(folder: Path) -> None:
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)


def _host(undo: ExitStack, folder: Path, number: int, name: str) -> None:
    space, outside = f"{name}-{_NUMBER}", f"zlveth{_NUMBER}-{number}"
    _ip("netns", "add", space)
    undo.callback(_ip, "netns", "del", space)
    _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
    undo.callback(_ip, "link", "del", outside)
    _ip("link", "set", outside, "master", _BRIDGE, "up")
    _ip("-n", space, "addr", "add", f"{_SUBNET}.{number}/24", "dev", "eth0")
    _ip("-n", space, "link", "set", "eth0", "up")
    _ip("-n", space, "link", "set", "lo", "up")
    Path("/run/sshd").mkdir(exist_ok=True)
    config = folder / f"sshd-{number}.conf"
    config.write_text(
        f"HostKey {folder / 'host'}\nAuthorizedKeysFile {folder / 'user.pub'}\nPidFile none\n"
        f"ListenAddress {_SUBNET}.{number}\nStrictModes no\nPermitRootLogin yes\nUsePAM no\n"
        "AcceptEnv CXX XDG_CACHE_HOME\n"
    )
    means = _poverty(folder / "own") if name == POOR else []
    daemon = subprocess.Popen(["ip", "netns", "exec", space, *means, "/usr/sbin/sshd", "-D", "-f", config])
    undo.callback(daemon.wait)
    undo.callback(daemon.send_signal, signal.SIGTERM)


def _poverty(own: Path) -> list[str]:
    """Write what takes from a program and its logins; the mounts are seen by them alone."""
    mounts = (f"mount -t tmpfs -o size=1m tmpfs {path}" for path in ("/dev/shm", own))
    no_right = ("setpriv", "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock")
    return ["sh", "-c", f'{" && ".join(mounts)} && exec "$@"', "-", *no_right, "prlimit", "--memlock=65536"]


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + 10
    while True:
        with contextlib.suppress(OSError), socket.create_connection((address, 22), timeout=1):
            return
        assert time.monotonic() < deadline, f"no sshd at {address}"
        time.sleep(0.02)


def _client(folder: Path) -> Path:
    """Put an `ssh` first in the PATH that is the real one with the bed's configuration."""
    config = folder / "ssh.conf"
    config.write_text(
        "".join(
            f"Host {name}\n  HostName {_SUBNET}.{number}\n"
            for number, name in enumerate((*NAMES, POOR), start=1)
        )
        + f"Host *\n  User root\n  IdentityFile {folder / 'user'}\n  IdentitiesOnly yes\n"
        "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )
    programs = folder / "bin"
    programs.mkdir()
    wrapper = programs / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
    wrapper.chmod(0o755)
    return programs


def _hostfile(folder: Path) -> Path:
    hostfile = folder / "hostfile"
    hostfile.write_text("# two machines\n" + "".join(f"{name} slots=1\n" for name in NAMES))
    return hostfile
