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

from tests.cluster import network
from tests.cluster.network import Network

PROGRAMS = ("ip", "mpirun", "ssh", "ssh-keygen", "pdsh", "setpriv", "prlimit", "sshd")
NAMES = ("zlnode1", "zlnode2")
POOR = "zlnode3"
ALL = (*NAMES, POOR)
OTHER_PORT = 2222
"""Each sshd listens there, too."""


@dataclass(frozen=True)
class Bed:
    """What a test needs: a PATH whose `ssh` knows the hosts, and their names."""

    network: Network
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
        return self.network.unplugged(name)

    def closed_ports(self, name: str, to: str) -> contextlib.AbstractContextManager[None]:
        """Let a host send nothing to the ports of another one for a while, except to its sshd."""
        return self.network.closed_ports(name, to)

    def processes(self, marker: str) -> list[int]:
        """The processes whose command line holds a marker."""
        found = subprocess.run(["pgrep", "-f", marker], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]


def missing() -> list[str]:
    """Name what this machine lacks for the bed."""
    return network.missing(PROGRAMS)


@contextmanager
def hosts(folder: Path) -> Iterator[Bed]:
    """Set the hosts up, and take everything away again."""
    with ExitStack() as undo:
        made = network.network(undo, "zlbridge", "10.77", ALL)
        _keys(folder)
        own = folder / "own"
        own.mkdir()
        for name in ALL:
            _sshd(undo, folder, made, name)
        for name in ALL:
            _wait_for(made.address(name))
        yield Bed(made, _client(folder, made), _hostfile(folder), own)


def _keys(folder: Path) -> None:
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)


def _sshd(undo: ExitStack, folder: Path, made: Network, name: str) -> None:
    Path("/run/sshd").mkdir(exist_ok=True)
    config = folder / f"sshd-{name}.conf"
    config.write_text(
        f"HostKey {folder / 'host'}\nAuthorizedKeysFile {folder / 'user.pub'}\nPidFile none\n"
        f"ListenAddress {made.address(name)}:22\nListenAddress {made.address(name)}:{OTHER_PORT}\n"
        "StrictModes no\nPermitRootLogin yes\nUsePAM no\n"
        "AcceptEnv CXX XDG_CACHE_HOME\n"
    )
    means = _poverty(folder / "own") if name == POOR else []
    argv = network.inside(made.space(name), *means, "/usr/sbin/sshd", "-D", "-f", config)
    daemon = subprocess.Popen(argv)
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


def _client(folder: Path, made: Network) -> Path:
    """Put an `ssh` first in the PATH that is the real one with the bed's configuration."""
    config = folder / "ssh.conf"
    config.write_text(
        "".join(f"Host {name}\n  HostName {made.address(name)}\n" for name in ALL)
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
