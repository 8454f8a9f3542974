"""The addresses of the connection by which a program was started on this host."""

from collections.abc import Mapping
from typing import NamedTuple


class Connection(NamedTuple):
    """Both ends; None for what is not known."""

    seen_from: str | None
    """The address of the machine that asked."""
    reached_at: str | None
    """The address of this host, as the other machine knows it."""


def connection(environ: Mapping[str, str]) -> Connection:
    """Read the variables of sshd, or those of Slurm: a step also has the variables of a login elsewhere."""
    words = environ.get("SSH_CONNECTION", "").split()
    if len(words) == 4 and "SLURM_STEP_ID" not in environ:
        return Connection(words[0], words[2])
    return Connection(environ.get("SLURM_LAUNCH_NODE_IPADDR"), None)
