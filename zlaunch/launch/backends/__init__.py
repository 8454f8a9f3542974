"""The launchers: a table of modules with the same function."""

from collections.abc import Mapping
from typing import Protocol

from zlaunch.hosts.cluster.topology import Reach, Topology
from zlaunch.job.script import Script
from zlaunch.job.spec import JobSpec, Launcher
from zlaunch.launch.backends import deepspeed, openmpi, torchrun
from zlaunch.launch.backends.target import Target


class Backend(Protocol):
    """A module of this package."""

    def build_argv(self, target: Target, topology: Topology, accelerator: str, port: int) -> tuple[str, ...]:
        """The launcher's module, and the arguments with which it runs the target on every slot."""


def launcher_of(job: JobSpec, script: Script, reach: Reach = Reach.HERE) -> Launcher:
    """Choose torchrun, unless DeepSpeed's launcher is needed to tell a script its local rank.

    On the nodes of a job that something else has started, zlaunch's rank program does that.
    """
    is_started = reach in (Reach.JOINED, Reach.SRUN)
    return job.launcher or ("deepspeed" if script.wants_local_rank and not is_started else "torchrun")


BACKENDS: Mapping[Launcher, Backend] = {"torchrun": torchrun, "deepspeed": deepspeed, "openmpi": openmpi}
