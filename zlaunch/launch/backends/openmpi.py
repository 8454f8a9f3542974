"""DeepSpeed's own runner with Open MPI's `mpirun` in place of pdsh; it takes whole hosts alone."""

from zlaunch.errors import WrongUsage
from zlaunch.hosts.cluster.topology import Topology
from zlaunch.launch.backends import deepspeed
from zlaunch.launch.launcher import Backend, Starter, Target


def build_argv(target: Target, topology: Topology, accelerator: str, port: int) -> tuple[str, ...]:
    """The same as for pdsh, without `--include`, which this runner refuses."""
    module, *words = deepspeed.build_argv(target, topology, accelerator, port)
    return (module, "--launcher=openmpi", *(word for word in words if not word.startswith("--include=")))


def check(topology: Topology) -> None:
    """Raise WrongUsage for what DeepSpeed's runner cannot tell Open MPI."""
    parts = [host.name for host in topology.hosts if host.devices != tuple(range(len(host.devices)))]
    if parts:
        raise WrongUsage(
            f"`--launcher openmpi` takes whole hosts, not some slots of `{parts[0]}`",
            "use `--launcher torchrun`",
        )
    if not topology.spans_hosts:
        raise WrongUsage(
            "`--launcher openmpi` takes whole hosts", "add `--hostfile FILE`, or use `--launcher torchrun`"
        )


BACKEND = Backend(build_argv, starter=Starter("mpirun", "openmpi-bin"), check=check)
