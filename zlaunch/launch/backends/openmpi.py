"""DeepSpeed's own runner with Open MPI's `mpirun` in place of pdsh; it takes whole hosts alone."""

from zlaunch.hosts.cluster.topology import Topology
from zlaunch.launch.backends import deepspeed
from zlaunch.launch.backends.target import Target


def build_argv(target: Target, topology: Topology, accelerator: str, port: int) -> tuple[str, ...]:
    """The same as for pdsh, without `--include`, which this runner refuses."""
    module, *words = deepspeed.build_argv(target, topology, accelerator, port)
    return (module, "--launcher=openmpi", *(word for word in words if not word.startswith("--include=")))
