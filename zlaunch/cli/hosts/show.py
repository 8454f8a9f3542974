"""`zlaunch hosts show`: which ranks run on which hosts."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.cli.options import AsJson, Hostfile, Hosts
from zlaunch.cli.views.dump import to_json
from zlaunch.errors import WrongUsage
from zlaunch.frozen import dataclass
from zlaunch.hosts.cluster.placement import choose_slots, uncounted_hosts
from zlaunch.hosts.cluster.started_by import Allocation, ClusterEnvironment, Member, detect_cluster
from zlaunch.hosts.cluster.topology import Host, Topology, read_hosts, select
from zlaunch.job.recipes import default_recipe
from zlaunch.job.spec import JobSpec

Include = Annotated[str | None, typer.Option(metavar="HOST:SLOTS", help="Use only these slots: w0@w1:0,2.")]
Exclude = Annotated[str | None, typer.Option(metavar="HOST:SLOTS", help="Use all slots except these.")]


@dataclass(frozen=True, slots=True)
class _Row:
    host: str
    reached_at: str
    slots: Sequence[int]
    """Empty if nothing counts them without asking the host, and so are the ranks then."""
    ranks: Sequence[int]
    python: str | None = None


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
    job = JobSpec(default_recipe(), hostfile=hostfile, hosts=hosts, include=include, exclude=exclude)
    cluster = None if job.names_hosts else detect_cluster(os.environ)
    if isinstance(cluster, Member):
        rows = _member_rows(cluster, job)
    else:
        rows = _host_rows(_hosts_shown(job, cluster))
    if as_json:
        members = [{name: value for name, value in asdict(row).items() if value is not None} for row in rows]
        console.data(to_json({"hosts": members}))
        return
    console.data(*console.table(_table_rows(rows), indent=""))
    if isinstance(cluster, Member):
        who = f"{cluster.kind} {cluster.number} of {cluster.count}"
        plan = "`zlaunch train --dry-run` shows its plan"
        console.say(*console.paragraph(f"this is {who}: {cluster.source}; {plan}"))


def _table_rows(rows: Sequence[_Row]) -> list[tuple[str, ...]]:
    """Write a line for each row below a head, with a column for Python if a host has its own."""
    table = [("host", "reached at", "slots", "ranks")]
    table += [(row.host, row.reached_at, _numbers(row.slots), _numbers(row.ranks)) for row in rows]
    pythons = ["python", *(row.python or "that of the job" for row in rows)]
    if any(row.python for row in rows):
        return [(*cells, python) for cells, python in zip(table, pythons, strict=True)]
    return [*table]


def _host_rows(hosts: Sequence[Host]) -> list[_Row]:
    ranks: dict[str, list[int]] = {host.name: [] for host in hosts}
    if all(host.devices for host in hosts):
        for slot in Topology(tuple(hosts)).slots():
            ranks[slot.host].append(slot.rank)
    return [_Row(host.name, _address(host), host.devices, ranks[host.name], host.python) for host in hosts]


def _member_rows(member: Member, job: JobSpec) -> list[_Row]:
    """Write what one member of a job is told: not the names of the others, nor how many ranks they start."""
    if job.include or job.exclude:
        raise WrongUsage(
            f"{member.source} does not name the hosts to choose from",
            "leave out `--include` and `--exclude`",
        )
    return [_member(member, number) for number in range(member.count)]


def _member(member: Member, number: int) -> _Row:
    name, where = f"{member.kind} {number}", _member_place(member, number)
    if member.device is not None:
        return _Row(name, where, (), (number,))
    slots = range(member.slots or 0) if number == member.number else ()
    return _Row(name, where, tuple(slots), ())


def _member_place(member: Member, number: int) -> str:
    places = []
    if number == 0:
        places.append(f"{member.address} port {member.port}")
    if number == member.number:
        places.append("this machine")
    return ", ".join(places) or "not known before it joins"


def _hosts_shown(job: JobSpec, cluster: ClusterEnvironment | None) -> tuple[Host, ...]:
    if isinstance(cluster, Allocation):
        return select([Host(name, ()) for name in cluster.hosts], job.include, job.exclude)
    if not job.names_hosts:
        raise WrongUsage("there are no hosts to show", "add `--hostfile FILE` or `--hosts node1:8,node2:8`")
    lines = read_hosts(job.hostfile, job.hosts)
    if uncounted_hosts(lines):
        return tuple(line.host for line in lines)
    return choose_slots(lines, job.devices).hosts


def _address(host: Host) -> str:
    """Write what ssh is given, and the address for the other hosts if that is another one."""
    text = f"{host.user}@{host.name}" if host.user else host.name
    if host.port:
        text += f" port {host.port}"
    if host.addr:
        text += f", {host.addr} for other hosts"
    return text


def _numbers(numbers: Sequence[int]) -> str:
    if not numbers:
        return "?"
    is_range = len(numbers) > 2 and [*numbers] == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]}-{numbers[-1]}" if is_range else ", ".join(map(str, numbers))
