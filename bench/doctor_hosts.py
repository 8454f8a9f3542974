"""How long `zlaunch doctor` takes for many hosts: real sshd on loopback addresses of this machine.

`python -m bench.doctor_hosts [HOSTS]` starts one sshd for each of 127.0.1.1 to 127.0.1.HOSTS, and examines
them all. All programs of all hosts share the cores of this machine, so the slowest answer is late for that
reason alone. What zlaunch adds is the time of the whole command beyond the slowest answer, in the same run.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

PORT = 2299


def main(count: int) -> None:
    """Print the times for one host and for all."""
    with ExitStack() as undo:
        folder = Path(undo.enter_context(tempfile.TemporaryDirectory()))
        environment = {**os.environ, "PATH": f"{_client(folder, count)}{os.pathsep}{os.environ['PATH']}"}
        _start(undo, folder, count)
        print(f"cores: {len(os.sched_getaffinity(0))}, load: {os.getloadavg()[0]:.1f}")
        for hosts in (1, 1, count, count, count):
            wall, slowest, median = _doctor(hosts, environment, folder)
            answers = f"median answer {median:6.2f} s, slowest {slowest:6.2f} s"
            print(f"{hosts:>3} hosts: {wall:6.2f} s in all, {answers}, beyond it {wall - slowest:5.2f} s")


def _doctor(count: int, environment: dict[str, str], folder: Path) -> tuple[float, float, float]:
    names = ",".join(f"n{number}" for number in range(1, count + 1))
    argv = [sys.executable, "-m", "zlaunch", "doctor", "--hosts", names, "--json"]
    started = time.monotonic()
    done = subprocess.run(
        argv, cwd=folder, env={**environment, "HF_HUB_OFFLINE": "1"}, stdout=subprocess.PIPE, check=False
    )
    wall = time.monotonic() - started
    answers = sorted(one["seconds"] for one in json.loads(done.stdout)["hosts"].values() if one["facts"])
    assert len(answers) == count, f"{len(answers)} of {count} hosts answered"
    return wall, answers[-1], answers[count // 2]


def _client(folder: Path, count: int) -> Path:
    hosts = "".join(f"Host n{number}\n  HostName 127.0.1.{number}\n" for number in range(1, count + 1))
    everywhere = (
        f"Host *\n  Port {PORT}\n  IdentityFile {folder / 'user'}\n  IdentitiesOnly yes\n"
        "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )
    (folder / "ssh.conf").write_text(hosts + everywhere)
    (programs := folder / "bin").mkdir()
    (programs / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder / "ssh.conf"} "$@"\n')
    (programs / "ssh").chmod(0o755)
    return programs


def _start(undo: ExitStack, folder: Path, count: int) -> None:
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    for number in range(1, count + 1):
        undo.enter_context(_sshd(folder, f"127.0.1.{number}"))


@contextlib.contextmanager
def _sshd(folder: Path, address: str) -> Iterator[None]:
    config = folder / f"{address}.conf"
    config.write_text(
        f"Port {PORT}\nListenAddress {address}\nHostKey {folder / 'host'}\n"
        f"AuthorizedKeysFile {folder / 'user.pub'}\nPidFile none\n"
        "StrictModes no\nPermitRootLogin yes\nUsePAM no\n"
    )
    with subprocess.Popen(["/usr/sbin/sshd", "-D", "-f", config]) as daemon:
        try:
            _wait_for(address)
            yield
        finally:
            daemon.terminate()


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + 10
    while True:
        with contextlib.suppress(OSError), socket.create_connection((address, PORT), timeout=1):
            return
        assert time.monotonic() < deadline, f"no sshd at {address}"
        time.sleep(0.02)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 64)
