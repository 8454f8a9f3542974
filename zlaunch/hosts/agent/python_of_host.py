"""Which Python a host uses: for the programs of zlaunch that run there, and for its ranks.

That is the same one everywhere, unless the hostfile has a `python=` for the host. Then the ranks use that
Python, and on other hosts so do the programs of zlaunch. It must be installed for that Python: the zlaunch
that runs here may be at another path there.
"""

import shutil
import socket
from collections.abc import Iterable
from pathlib import Path

from zlaunch.hosts.cluster.topology import Host, HostLine
from zlaunch.hosts.machine.resources import local_names
from zlaunch.process import ours


def is_here(host: Host) -> bool:
    """Whether a host is this machine, under any of its names."""
    return host.name in local_names(socket.gethostname())


def own_program(host: Host, module: str, *args: str, python: str | None = None) -> list[str]:
    """Command line for a module of zlaunch on a host, in the Python of zlaunch or another one.

    With `python=` it is `python -m`, which leaves the working directory alone if PYTHONSAFEPATH is set.
    """
    if host.python is None or is_here(host):
        return ours(module, *args, python=python)
    return [host.python, "-m", module, *args]


def python_here(lines: Iterable[HostLine], default: Path | None) -> Path | None:
    """The interpreter of the ranks on this machine: that of its own line, if it has one."""
    return next((path_here(line.host, default) for line in lines if is_here(line.host)), default)


def path_here(host: Host, default: Path | None) -> Path | None:
    """The interpreter that the hostfile names for a host, as this machine finds it."""
    return default if host.python is None else Path(shutil.which(host.python) or host.python)
