"""Two hosts on one machine: network namespaces on a bridge, each with a real sshd.

They share the file system, as the hosts of a cluster share theirs. All traffic stays between
addresses of the bridge.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("ip", "ssh", "ssh-keygen", "pdsh", "/usr/sbin/sshd")
NAMES = ("zlnode1", "zlnode2")
_SUBNET = "10.77.7"


@dataclass(frozen=True)
class Bed:
    """What a test needs: a PATH whose `ssh` knows the hosts, and their names."""

    programs: Path
    hostfile: Path

    def environment(self) -> dict[str, str]:
        """The environment of someone who can log in to both hosts."""
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "GLOO_SOCKET_IFNAME": "eth0"}

    def processes(self, marker: str) -> list[int]:
        """The processes whose command line holds a marker."""
        found = subprocess.run(["pgrep", "-f", marker], capture_output=True, text=True, check=False)
        return [int(pid) for pid in found.stdout.split()]


def missing() -> list[str]:
    """Name what this machine lacks for the bed."""
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    return lacking if os.geteuid() == 0 else [*lacking, "root"]


@contextmanager
def two_hosts(folder: Path) -> Iterator[Bed]:
    """Set the hosts up, and take everything away again."""
    with ExitStack() as undo:
        _bridge(undo)
        _keys(folder)
        for number, name in enumerate(NAMES, start=1):
            _host(undo, folder, number, name)
        yield Bed(_client(folder), _hostfile(folder))


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


def _bridge(undo: ExitStack) -> None:
    _ip("link", "add", "zlbridge", "type", "bridge")
    undo.callback(_ip, "link", "del", "zlbridge")
    _ip("addr", "add", f"{_SUBNET}.254/24", "dev", "zlbridge")
    _ip("link", "set", "zlbridge", "up")


def _keys(folder: Path) -> None:
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)


def _host(undo: ExitStack, folder: Path, number: int, name: str) -> None:
    _ip("netns", "add", name)
    undo.callback(_ip, "netns", "del", name)
    _ip("link", "add", f"zlveth{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
    undo.callback(_ip, "link", "del", f"zlveth{number}")
    _ip("link", "set", f"zlveth{number}", "master", "zlbridge", "up")
    _ip("-n", name, "addr", "add", f"{_SUBNET}.{number}/24", "dev", "eth0")
    _ip("-n", name, "link", "set", "eth0", "up")
    _ip("-n", name, "link", "set", "lo", "up")
    Path("/run/sshd").mkdir(exist_ok=True)
    config = folder / f"sshd-{number}.conf"
    config.write_text(
        f"HostKey {folder / 'host'}\nAuthorizedKeysFile {folder / 'user.pub'}\nPidFile none\n"
        f"ListenAddress {_SUBNET}.{number}\nStrictModes no\nPermitRootLogin yes\nUsePAM no\n"
    )
    daemon = subprocess.Popen(["ip", "netns", "exec", name, "/usr/sbin/sshd", "-D", "-f", config])
    undo.callback(daemon.wait)
    undo.callback(daemon.send_signal, signal.SIGTERM)


def _client(folder: Path) -> Path:
    """Put an `ssh` first in the PATH that is the real one with the bed's configuration."""
    config = folder / "ssh.conf"
    config.write_text(
        "".join(f"Host {name}\n  HostName {_SUBNET}.{number}\n" for number, name in enumerate(NAMES, start=1))
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
