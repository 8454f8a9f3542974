"""The hosts of an allocation of Slurm."""

from collections.abc import Mapping

from zlaunch.errors import Unavailable
from zlaunch.process import output_of

_SECONDS = 30.0


def allocated_hosts(environ: Mapping[str, str]) -> list[str]:
    """List the hosts of the allocation that zlaunch runs in; raise Unavailable outside of one."""
    listed = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not listed:
        raise Unavailable(
            "`--slurm` examines the hosts of an allocation, and this is none",
            "`salloc --nodes=2 zlaunch doctor --slurm`, or call it in a batch script",
        )
    names = output_of(["scontrol", "show", "hostnames", listed], _SECONDS)
    if not names:
        raise Unavailable(
            f"`scontrol show hostnames {listed}` gives no answer", "check that Slurm is installed here"
        )
    return names.split()
