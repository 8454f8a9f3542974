"""Command lines that run something on another host over ssh, whatever its login shell is."""

import base64
import os
import shlex
from collections.abc import Sequence

from zlaunch.hosts.cluster.topology import Host
from zlaunch.process import SAFE_PATH
from zlaunch.secrets import is_secret

CONNECT_SECONDS = 10


def ssh_command(host: Host, remote: str) -> list[str]:
    """Build the ssh command that runs a line of shell on a host."""
    options = (
        "-o",
        "BatchMode=yes",
        "-o",
        f"ConnectTimeout={CONNECT_SECONDS}",
        "-o",
        "ServerAliveInterval=5",
    )
    return ["ssh", *options, *destination(host), remote]


def destination(host: Host) -> list[str]:
    """Write how `ssh` and `ssh-copy-id` are told the host, its user and its port."""
    words, name = [], host.name
    if host.port:
        words = ["-p", str(host.port)]
    if host.user:
        name = f"{host.user}@{name}"
    return [*words, name]


def remote_line(argv: Sequence[str], directory: str, greeting: str | None = None) -> str:
    """Write a line of shell that runs a program in a directory; a greeting says that a shell was reached."""
    line = f"cd {shlex.quote(directory)} && exec {shlex.join(argv)}"
    if greeting is not None:
        line = f"echo {shlex.quote(greeting)}; {line}"
    return for_any_shell(line)


def for_any_shell(line: str) -> str:
    """Write a line for `sh` so that a login shell passes it on unchanged, also fish and csh.

    Between single quotes, fish reads a backslash as an escape, and csh reads `!` and the end of the line.
    """
    if not set("\\!'\n") & set(line):
        return f"exec sh -c '{line}'"
    encoded = base64.b64encode(os.fsencode(line)).decode()
    return f"exec sh -c 'eval \"$(echo {encoded} | base64 -d)\"'"


def with_python_variables(argv: Sequence[str]) -> list[str]:
    """Write a command that gives a program on another host the variables that Python reads when it starts.

    It imports nothing from its working directory.
    """
    given = os.environ.items()
    variables = {
        name: value for name, value in given if name.startswith("PYTHON") and not is_secret(name, value)
    }
    return ["env", *(f"{name}={value}" for name, value in {**SAFE_PATH, **variables}.items()), *argv]
