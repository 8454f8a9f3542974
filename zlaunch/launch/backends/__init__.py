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


def launcher_of(job: JobSpec, script: Script, over_ssh: bool) -> Launcher:
    """Choose DeepSpeed's launcher where it alone reaches other hosts, or tells scripts their local rank."""
    needs_deepspeed = over_ssh or script.wants_local_rank
    return job.launcher or ("deepspeed" if needs_deepspeed else "torchrun")


BACKENDS: Mapping[Launcher, Backend] = {"torchrun": torchrun, "deepspeed": deepspeed}
