"""The launchers: a table of modules with the same function."""

from collections.abc import Mapping
from typing import Protocol

from zlaunch.hosts.topology import Topology
from zlaunch.job.script import Script
from zlaunch.job.spec import JobSpec, Launcher
from zlaunch.launch.backends import deepspeed, torchrun
from zlaunch.launch.backends.target import Target


class Backend(Protocol):
    """A module of this package."""

    def build_argv(self, target: Target, topology: Topology, accelerator: str, port: int) -> tuple[str, ...]:
        """The launcher's module, and the arguments with which it runs the target on every slot."""


def launcher_of(job: JobSpec, script: Script) -> Launcher:
    """Choose torchrun, unless only DeepSpeed's launcher tells a script its local rank as it wants it."""
    return job.launcher or ("deepspeed" if script.wants_local_rank else "torchrun")


BACKENDS: Mapping[Launcher, Backend] = {"torchrun": torchrun, "deepspeed": deepspeed}
