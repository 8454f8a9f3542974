"""`zlaunch hosts show`: which ranks run on which hosts."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.cli.options import AsJson, Hostfile, Hosts
from zlaunch.cli.views.dump import to_json
from zlaunch.errors import WrongUsage
from zlaunch.hosts.cluster.environment import Allocation, ClusterEnvironment, Member, detect_cluster
from zlaunch.hosts.cluster.placement import choose_slots
from zlaunch.hosts.cluster.topology import Host, Topology, read_hosts, select
from zlaunch.job.spec import JobSpec
from zlaunch.launch.facts import default_recipe

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
    rows = _members(cluster, job) if isinstance(cluster, Member) else _rows(_hosts(job, cluster))
    if as_json:
        found = [{name: value for name, value in asdict(row).items() if value is not None} for row in rows]
        console.data(to_json({"hosts": found}))
        return
    have_own = any(row.python for row in rows)
    table = [
        (
            row.host,
            row.reached_at,
            _numbers(row.slots),
            _numbers(row.ranks),
            *([row.python or "that of the job"] if have_own else []),
        )
        for row in rows
    ]
    head = ("host", "reached at", "slots", "ranks", *(["python"] if have_own else []))
    console.data(*console.table([head, *table], indent=""))
    if isinstance(cluster, Member):
        who = f"{cluster.kind} {cluster.number} of {cluster.count}"
        plan = "`zlaunch train --dry-run` shows its plan"
        console.say(*console.paragraph(f"this is {who}: {cluster.source}; {plan}"))


def _rows(hosts: Sequence[Host]) -> list[_Row]:
    are_counted = all(host.devices for host in hosts)
    slots = list(Topology(tuple(hosts)).slots()) if are_counted else []
    ranks = {host.name: [slot.rank for slot in slots if slot.host == host.name] for host in hosts}
    return [_Row(one.name, _address(one), one.devices, ranks[one.name], one.python) for one in hosts]


def _members(member: Member, job: JobSpec) -> list[_Row]:
    """Write what one member of a job is told: not the names of the others, nor how many ranks they start."""
    if job.include or job.exclude:
        raise WrongUsage(
            f"{member.source} does not name the hosts to choose from",
            "leave out `--include` and `--exclude`",
        )
    return [
        _Row(
            f"{member.kind} {number}",
            _where(member, number),
            tuple(range(member.slots or 0)) if number == member.number and member.device is None else (),
            () if member.device is None else (number,),
        )
        for number in range(member.count)
    ]


def _where(member: Member, number: int) -> str:
    here = ["this machine"] if number == member.number else []
    if number == 0:
        return ", ".join([f"{member.address} port {member.port}", *here])
    return here[0] if here else "not known before it joins"


def _hosts(job: JobSpec, cluster: ClusterEnvironment | None) -> tuple[Host, ...]:
    if isinstance(cluster, Allocation):
        return select([Host(name, ()) for name in cluster.hosts], job.include, job.exclude)
    if not job.names_hosts:
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
