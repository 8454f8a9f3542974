"""torchrun: the default. It passes signals on, and on one host it picks a free port."""

from zlaunch.hosts.cluster.topology import Topology
from zlaunch.launch.launcher import Backend, Target

MODULE = "torch.distributed.run"

NO_LOGS = "/dev/null"
"""Ranks write their own logs; by default torchrun leaves a directory in /tmp for each job."""

_FLAGS = {"script": (), "module": ("-m",), "program": ("--no-python",)}


def node_argv(target: Target, topology: Topology, node: int, address: str, port: int) -> tuple[str, ...]:
    """`MODULE --nnodes N --node-rank K --nproc-per-node M --master-addr A …` on one of several hosts.

    Its rendezvous is static, because the dynamic one orders hosts by their names and not by `--node-rank`.
    """
    return (
        MODULE,
        f"--nnodes={len(topology.hosts)}",
        f"--node-rank={node}",
        f"--nproc-per-node={len(topology.hosts[node].devices)}",
        f"--master-addr={address}",
        f"--master-port={port}",
        f"--log-dir={NO_LOGS}",
        *_FLAGS[target.kind],
        target.name,
        *target.args,
    )


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


BACKEND = Backend(build_argv, node_argv)
