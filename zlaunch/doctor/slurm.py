"""The hosts of an allocation of Slurm."""

from collections.abc import Mapping

from zlaunch.errors import Unavailable
from zlaunch.hosts.hostlist import expand
from zlaunch.hosts.topology import Host


def allocated_hosts(environ: Mapping[str, str]) -> list[Host]:
    """List the hosts of the allocation that zlaunch runs in; raise Unavailable outside of one."""
    listed = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not listed:
        raise Unavailable(
            "`--slurm` examines the hosts of an allocation, and this is none",
            "`salloc --nodes=2 zlaunch doctor --slurm`, or call it in a batch script",
        )
    return [Host(name, ()) for name in expand(listed)]
