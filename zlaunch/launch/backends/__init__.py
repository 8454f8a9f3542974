"""The launchers a job can be started with: a table of modules, each with the same function."""

from collections.abc import Mapping
from typing import Protocol

from zlaunch.hosts.topology import Topology
from zlaunch.job.spec import Launcher
from zlaunch.launch.backends import deepspeed, torchrun
from zlaunch.launch.backends.target import Target


class Backend(Protocol):
    """What a module here provides."""

    def build_argv(self, target: Target, topology: Topology, accelerator: str, port: int) -> tuple[str, ...]:
        """Write the command line that runs the target on every slot."""


BACKENDS: Mapping[Launcher, Backend] = {"torchrun": torchrun, "deepspeed": deepspeed}
