"""The command that runs a program on a host: here, over ssh, or as a step of the Slurm job."""

import os
from collections.abc import Sequence
from pathlib import Path

from zlaunch.hosts.agent.python_of_host import is_here
from zlaunch.hosts.agent.ssh import remote_line, ssh_command, with_python_variables
from zlaunch.hosts.cluster.slurm import cpus_on
from zlaunch.hosts.cluster.topology import Host, Reach

GREETING = "zlaunch asks"
"""A shell prints it on the host before the program that answers."""


def is_remote(host: Host, reach: Reach) -> bool:
    """Whether a host is reached over ssh or srun; srun starts programs everywhere."""
    return reach is Reach.SRUN or not is_here(host)


def host_command(host: Host, argv: Sequence[str], reach: Reach, greeting: str | None = None) -> list[str]:
    """Run a program on a host in this directory; its stdin and stdout are those of this command."""
    line = remote_line(with_python_variables(argv), str(Path.cwd()), greeting)
    if reach is Reach.SRUN:
        return srun_command(host, line)
    if is_here(host):
        return ["/bin/sh", "-c", line]
    return ssh_command(host, line)


def srun_command(host: Host, line: str) -> list[str]:
    """Run a line of shell as one task on one node of the Slurm job, beside its other steps.

    The step gets all that the job has on that node: `--overlap` shares it with other steps, and without
    `--cpu-bind=none` its task would be bound to one CPU.
    """
    argv = ["srun", "--nodes=1", "--ntasks=1", f"--nodelist={host.name}", "--overlap", "--cpu-bind=none"]
    if cpus := cpus_on(host.name, os.environ):
        argv.append(f"--cpus-per-task={cpus}")
    return [*argv, "--quiet", "sh", "-c", line]
