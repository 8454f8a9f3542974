"""The launchers: a table of modules with the same function."""

from collections.abc import Mapping
from typing import Protocol

from zlaunch.hosts.topology import Topology
from zlaunch.job.spec import Launcher
from zlaunch.launch.backends import deepspeed, torchrun
from zlaunch.launch.backends.target import Target


class Backend(Protocol):
    """A module of this package."""

    def build_argv(self, target: Target, topology: Topology, accelerator: str, port: int) -> tuple[str, ...]:
        """The launcher's module, and the arguments with which it runs the target on every slot."""


BACKENDS: Mapping[Launcher, Backend] = {"torchrun": torchrun, "deepspeed": deepspeed}
