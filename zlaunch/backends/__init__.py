"""The launchers a job can be started with: a table of modules, each with the same function."""

from collections.abc import Mapping
from typing import Protocol

from zlaunch.backends import deepspeed, torchrun
from zlaunch.backends.target import Target
from zlaunch.job import Launcher
from zlaunch.topology import Topology


class Backend(Protocol):
    """What a module here provides."""

    def build_argv(self, target: Target, topology: Topology, accelerator: str, port: int) -> tuple[str, ...]:
        """Write the command line that runs the target on every slot."""


BACKENDS: Mapping[Launcher, Backend] = {"torchrun": torchrun, "deepspeed": deepspeed}
