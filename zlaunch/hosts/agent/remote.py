"""The command that runs a program on another host: over ssh, or as a step of the Slurm job."""

import os
from collections.abc import Sequence
from pathlib import Path

from zlaunch.hosts.agent.ssh import remote_line, ssh_command, with_python_variables
from zlaunch.hosts.cluster.slurm import cpus_on
from zlaunch.hosts.cluster.topology import Host, Reach


def remote_command(host: Host, argv: Sequence[str], directory: Path, reach: Reach) -> list[str]:
    """Run a program in a directory of a host, whose stdin and stdout are those of this command."""
    return shell_command(host, remote_line(with_python_variables(argv), str(directory)), reach)


def shell_command(host: Host, line: str, reach: Reach) -> list[str]:
    """Run a line of shell on a host."""
    return srun_command(host, line) if reach is Reach.SRUN else ssh_command(host, line)


def srun_command(host: Host, line: str) -> list[str]:
    """Run a line of shell as one task on one node of the Slurm job, beside its other steps.

    The step gets all that the job has on that node: `--overlap` shares it with other steps, and without
    `--cpu-bind=none` its task would be bound to one CPU.
    """
    argv = ["srun", "--nodes=1", "--ntasks=1", f"--nodelist={host.name}", "--overlap", "--cpu-bind=none"]
    if cpus := cpus_on(host.name, os.environ):
        argv.append(f"--cpus-per-task={cpus}")
    return [*argv, "--quiet", "sh", "-c", line]
