"""`deepspeed`: DeepSpeed's own runner; over pdsh when there is a hostfile."""

from zlaunch.hosts.topology import Topology
from zlaunch.launch.backends.target import Target

PROGRAM = "deepspeed"

NO_HOSTFILE = "/dev/null"
"""Without a hostfile the runner would read `/job/hostfile` if it exists."""


def build_argv(target: Target, topology: Topology, accelerator: str, port: int) -> tuple[str, ...]:
    """`deepspeed --hostfile F --master_port P --no_local_rank … [--module] TARGET ARGS`.

    On a CPU the runner counts NUMA nodes as devices, so ranks are asked for by number; GPUs are
    named, because the runner ignores CUDA_VISIBLE_DEVICES as soon as it gets any selection.
    """
    return (
        PROGRAM,
        f"--hostfile={target.hostfile or NO_HOSTFILE}",
        *_selection(topology, accelerator),
        f"--master_port={port}",
        "--no_local_rank",
        *(("--force_multi",) if topology.over_ssh else ()),
        *(("--module",) if target.is_module else ()),
        target.name,
        *target.args,
    )


def _selection(topology: Topology, accelerator: str) -> tuple[str, ...]:
    if not topology.over_ssh and accelerator == "cpu":
        return (f"--num_gpus={topology.world_size}",)
    terms = (f"{host.name}:{','.join(map(str, host.devices))}" for host in topology.hosts)
    return (f"--include={'@'.join(terms)}",)
