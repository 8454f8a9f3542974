"""`torchrun`: the default on one host. It picks a free port and passes signals on."""

from zlaunch.backends.target import Target
from zlaunch.topology import Topology

PROGRAM = "torchrun"


def build_argv(target: Target, topology: Topology, accelerator: str, port: int) -> tuple[str, ...]:
    """`torchrun --standalone --nproc-per-node N [-m] TARGET ARGS`; devices come from the environment."""
    return (
        PROGRAM,
        "--standalone",
        f"--nproc-per-node={topology.world_size}",
        *(("-m",) if target.is_module else ()),
        target.name,
        *target.args,
    )
