"""torchrun: the default on one host. It picks a free port and passes signals on."""

from zlaunch.hosts.topology import Topology
from zlaunch.launch.backends.target import Target

MODULE = "torch.distributed.run"

NO_LOGS = "/dev/null"
"""Ranks write their own logs; by default torchrun leaves a directory in /tmp for each job."""

_FLAGS = {"script": (), "module": ("-m",), "program": ("--no-python",)}


def build_argv(target: Target, topology: Topology, accelerator: str, port: int) -> tuple[str, ...]:
    """`MODULE --standalone --nproc-per-node N … [-m] TARGET ARGS`; devices come from the environment."""
    return (
        MODULE,
        "--standalone",
        f"--nproc-per-node={topology.world_size}",
        f"--log-dir={NO_LOGS}",
        *_FLAGS[target.kind],
        target.name,
        *target.args,
    )
