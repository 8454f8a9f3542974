"""DeepSpeed's own runner; over pdsh when there is a hostfile."""

from zlaunch.hosts.cluster.topology import Topology
from zlaunch.launch.launcher import PDSH, Backend, Target

MODULE = "deepspeed.launcher.runner"

NO_HOSTFILE = "/dev/null"
"""Without a hostfile the runner would read `/job/hostfile` if it exists."""

_FLAGS = {"script": (), "module": ("--module",), "program": ("--no_python",)}


def build_argv(target: Target, topology: Topology, accelerator: str, port: int) -> tuple[str, ...]:
    """`MODULE --hostfile F --master_port P --no_local_rank … [--module] TARGET ARGS`.

    On a CPU the runner counts NUMA nodes as devices, so ranks are asked for by number; GPUs are
    named, because the runner ignores CUDA_VISIBLE_DEVICES as soon as it gets any selection.
    """
    words = [MODULE, f"--hostfile={target.hostfile or NO_HOSTFILE}"]
    if accelerator == "cpu" and not topology.spans_hosts:
        words.append(f"--num_gpus={topology.world_size}")
    else:
        words.append(f"--include={topology.selection}")
    words.append(f"--master_port={port}")
    if not target.wants_local_rank:
        words.append("--no_local_rank")
    if topology.spans_hosts:
        words.append("--force_multi")
    return (*words, *_FLAGS[target.kind], target.name, *target.args)


BACKEND = Backend(build_argv, starter=PDSH, is_of_deepspeed=True)
