"""`zlaunch hosts show`: which ranks run on which hosts."""

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.cli.options import AsJson, Hostfile, Hosts
from zlaunch.cli.views.run import to_json
from zlaunch.errors import WrongUsage
from zlaunch.hosts.cluster_environment import Allocation, Member, detect_cluster
from zlaunch.hosts.placement import choose_slots
from zlaunch.hosts.topology import Host, Topology, read_hosts, select
from zlaunch.job.spec import JobSpec
from zlaunch.launch.facts import default_recipe

Include = Annotated[str | None, typer.Option(metavar="HOST:SLOTS", help="Use only these slots: w0@w1:0,2.")]
Exclude = Annotated[str | None, typer.Option(metavar="HOST:SLOTS", help="Use all slots except these.")]


def show(
    hostfile: Hostfile = None,
    hosts: Hosts = None,
    include: Include = None,
    exclude: Exclude = None,
    as_json: AsJson = False,
) -> None:
    """Show hosts, how they are reached, their slots and ranks; inside of a job, its nodes.

    No host is asked. Slots that the hostfile does not count are all GPUs of the host.
    """
    found = _hosts(
        JobSpec(default_recipe(), hostfile=hostfile, hosts=hosts, include=include, exclude=exclude)
    )
    are_counted = all(host.devices for host in found)
    slots = list(Topology(found).slots()) if are_counted else []
    ranks = {host.name: [slot.rank for slot in slots if slot.host == host.name] for host in found}
    if as_json:
        rows = [
            {
                "host": one.name,
                "reached_at": _address(one),
                "slots": one.devices,
                "ranks": ranks[one.name],
                **({} if one.python is None else {"python": one.python}),
            }
            for one in found
        ]
        console.data(to_json({"hosts": rows}))
        return
    have_own = any(one.python for one in found)
    table = [
        (
            one.name,
            _address(one),
            _numbers(one.devices),
            _numbers(ranks[one.name]),
            *([one.python or "that of the job"] if have_own else []),
        )
        for one in found
    ]
    head = ("host", "reached at", "slots", "ranks", *(["python"] if have_own else []))
    console.data(*console.table([head, *table], indent=""))


def _hosts(job: JobSpec) -> tuple[Host, ...]:
    if not job.names_hosts:
        cluster = detect_cluster(os.environ)
        if isinstance(cluster, Allocation):
            return select([Host(name, ()) for name in cluster.hosts], job.include, job.exclude)
        if isinstance(cluster, Member):
            raise WrongUsage(
                f"{cluster.source} does not name the other hosts", "start `zlaunch train --dry-run`"
            )
        raise WrongUsage("there are no hosts to show", "add `--hostfile FILE` or `--hosts node1:8,node2:8`")
    lines = [line.host for line in read_hosts(job.hostfile, job.hosts)]
    are_counted = all(host.devices for host in lines)
    return choose_slots(job, lines).hosts if are_counted else tuple(lines)


def _address(host: Host) -> str:
    """Write what ssh is given, and the address for the other hosts if that is another one."""
    user, port = f"{host.user}@" if host.user else "", f" port {host.port}" if host.port else ""
    addr = f", {host.addr} for other hosts" if host.addr else ""
    return f"{user}{host.name}{port}{addr}"


def _numbers(numbers: Sequence[int]) -> str:
    if not numbers:
        return "?"
    is_range = len(numbers) > 2 and [*numbers] == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]}-{numbers[-1]}" if is_range else ", ".join(map(str, numbers))
