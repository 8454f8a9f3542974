"""`--no-ssh`: the command that a person types on each host, and what it makes of the zlaunch there."""

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from zlaunch.console import shell_line
from zlaunch.errors import WrongUsage
from zlaunch.hosts.agent.python_of_host import path_here
from zlaunch.hosts.cluster.placement import choose_slots, uncounted_hosts
from zlaunch.hosts.cluster.started_by import DEFAULT_PORT, Member
from zlaunch.hosts.cluster.topology import Topology, read_hosts
from zlaunch.job.spec import GpuChoice, JobSpec
from zlaunch.secrets import assigned_secrets


def commands(job: JobSpec, asked: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Return the name of each host, and the command for it: that of the user, with the number of the host."""
    for name in assigned_secrets(job.env):
        raise WrongUsage(
            f"`--env {name}=…` would show a secret in the commands to type",
            f"set {name} on each host, and write `--env {name}`",
        )
    cut = [*asked, "--"].index("--")
    own = (word for word in asked[1:cut] if word != "--json")  # it is for these commands
    program, verb, *words = ("zlaunch", *own, *asked[cut:])
    for number, host in enumerate(_topology(job).hosts):
        typed = shell_line([program, verb, "--node-rank", str(number), *words])
        yield host.name, f"cd {shlex.quote(str(Path.cwd()))} && {typed}"


def as_member(job: JobSpec, number: int) -> tuple[JobSpec, Member]:
    """Return the job as one host starts its part, and which of the hosts it is; raise WrongUsage for none."""
    topology = _topology(job)
    hosts = topology.hosts
    if number >= len(hosts):
        raise WrongUsage(
            f"`--node-rank {number}`: there are {len(hosts)} hosts", f"write `--node-rank {len(hosts) - 1}`"
        )
    first, host = hosts[0], hosts[number]
    port, gpus = DEFAULT_PORT, None
    if (typed := os.environ.get("MASTER_PORT", "")).isdecimal():
        port = int(typed)
    if host.devices != tuple(range(len(host.devices))):
        gpus = GpuChoice(devices=host.devices)
    member = Member(
        number,
        len(hosts),
        first.addr or first.name,
        port,
        f"--node-rank {number} of {len(hosts)} hosts",
        slots=len(host.devices),
        hosts=topology.selection,
    )
    python = path_here(host, job.python)
    return replace(
        job, hostfile=None, hosts=None, include=None, exclude=None, gpus=gpus, python=python
    ), member


def _topology(job: JobSpec) -> Topology:
    if not job.names_hosts:
        raise WrongUsage("`--no-ssh` needs the hosts", "add `--hostfile FILE` or `--hosts node1:8,node2:8`")
    lines = read_hosts(job.hostfile, job.hosts)
    if uncounted := uncounted_hosts(lines):
        name = uncounted[0].name
        message = f"without ssh, zlaunch cannot find out how many slots `{name}` has"
        raise WrongUsage(message, f"write `{name}:8`")
    return choose_slots(lines, job.devices)
