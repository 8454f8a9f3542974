"""A real all-reduce over all hosts, one rank each; on one host, over its GPUs or two CPU ranks."""

import os
from collections.abc import Callable, Mapping, Sequence

from zlaunch.checks.across_hosts import HostResult
from zlaunch.checks.all_reduce import LARGE_BYTES
from zlaunch.checks.result import CheckResult, Status
from zlaunch.frozen import dataclass
from zlaunch.hosts.agent.conversation import Conversation, conversations
from zlaunch.hosts.agent.examination import Examined
from zlaunch.hosts.agent.host_command import GREETING, host_command, is_remote
from zlaunch.hosts.agent.python_of_host import own_program
from zlaunch.hosts.cluster.topology import Host, Reach
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.measured_speeds import keep_speed
from zlaunch.hosts.machine.ports import LOOPBACK, free_port
from zlaunch.hosts.rank_environment import forwarded
from zlaunch.units import brief

NAME = "all-reduce"
PROGRAM = "zlaunch.checks.all_reduce"
SECONDS = 8.0
"""For the all-reduces themselves; as much again, and the import of torch, for the start."""
_START_SECONDS = 60.0
_SLOW = 0.1
"""A smaller part of the speed of the interface means that something else is used, or wrong."""


@dataclass(frozen=True)
class _Rank:
    host: Host
    number: int
    master: str
    port: int
    backend: str
    world_size: int

    def program(self, python: str, reach: Reach) -> list[str]:
        """Write its command line, with the variables of this machine that ranks on other hosts get."""
        asked = [self.number, self.world_size, self.master, self.port, self.backend, SECONDS]
        argv = own_program(self.host, PROGRAM, *map(str, asked), python=python)
        if not is_remote(self.host, reach):
            return argv
        return ["env", *(f"{name}={value}" for name, value in forwarded(os.environ).items()), *argv]


def all_reduce(
    hosts: Sequence[Examined], reach: Reach, waiting: Callable[[list[str]], None]
) -> list[HostResult]:
    """Start the ranks, wait for them, and judge what they measured."""
    facts = {
        host.name: host.facts for host in hosts if host.facts is not None and host.facts.hardware is not None
    }
    if len(facts) < len(hosts):
        return [(hosts[0].name, CheckResult(NAME, Status.NOTE, "left out: not all hosts can be examined"))]
    ranks = _ranks_to_start(hosts, facts)
    if not ranks:
        error = "left out: the first host has no address that all others reach"
        return [(hosts[0].name, CheckResult(NAME, Status.NOTE, error))]
    commands = {}
    for rank in ranks:
        name = title = rank.host.name
        if len(hosts) == 1:
            title = f"rank {rank.number}"
        program = rank.program(facts[name].python.executable, reach)
        commands[title] = host_command(rank.host, program, reach, GREETING)
    seconds = 2 * SECONDS + _START_SECONDS
    with conversations(commands, seconds) as talks:
        talks.wait_for(1, seconds, waiting=waiting)
        return _judge(talks.all, ranks, hosts)


def _ranks_to_start(hosts: Sequence[Examined], facts: Mapping[str, MachineFacts]) -> list[_Rank]:
    """One rank on each host; on a single one, a rank on each GPU, or two on the CPU."""
    num_gpus, backend = min(len(host.machine.gpus) for host in facts.values()), "gloo"
    if num_gpus:
        backend = "nccl"
    places = [examined.host for examined in hosts]
    if len(hosts) == 1:
        places *= num_gpus or 2
        master, port = LOOPBACK, free_port()
    else:
        master, port = _master(hosts)
    if not master:
        return []
    return [_Rank(host, i, master, port, backend, len(places)) for i, host in enumerate(places)]


def _master(hosts: Sequence[Examined]) -> tuple[str, int]:
    """The address of the first host that all others reach, and a port that was free there, or nothing."""
    reaches = [host.reach for host in hosts[1:] if host.reach is not None]
    if len(reaches) == len(hosts) - 1:
        for address in reaches[0].addresses:
            if all(reach.addresses.get(address, "") is None for reach in reaches):
                return address, reaches[0].port
    return "", 0


def _judge(
    talks: Sequence[Conversation], ranks: Sequence[_Rank], hosts: Sequence[Examined]
) -> list[HostResult]:
    failed = [(rank.host.name, talk) for rank, talk in zip(ranks, talks, strict=True) if not talk.answers]
    if failed:
        hint = _backend_hint(ranks[0].backend, len(hosts))
        return [(host, CheckResult(NAME, Status.ERROR, _why_not(talk), hint)) for host, talk in failed]
    answers = [talk.answers[-1][1] for talk in talks]
    if len(ranks) == 1:
        return [(hosts[0].name, CheckResult(NAME, Status.OK, "one rank; nothing is sent"))]
    small, large = (max(float(answer[size]) for answer in answers) for size in ("small", "large"))
    wire = 2 * (len(ranks) - 1) / len(ranks) * LARGE_BYTES / large
    text = (
        f"{wire / 1e9:.2f} GB/s per rank, {brief(small)} for 4 bytes ({ranks[0].backend}, {len(ranks)} ranks)"
    )
    keep_rate(wire, ranks[0].backend, hosts)
    if len(hosts) == 1:
        copy = min(float(answer["copy"]) for answer in answers)
        return [
            (
                hosts[0].name,
                CheckResult(NAME, Status.OK, f"{text}; memory is copied at {copy / 1e9:.1f} GB/s"),
            )
        ]
    return [(hosts[0].name, _against_interface(text, 8 * wire / 1e6, hosts))]


def keep_rate(rate: float, backend: str, hosts: Sequence[Examined]) -> None:
    """Keep bytes per second of NCCL for estimates of jobs on these hosts; jobs on GPUs do not use gloo."""
    if backend != "nccl":
        return
    machines = [host.facts.machine for host in hosts if host.facts is not None]
    if len(hosts) > 1:
        keep_speed("network", [host.name for host in hosts], rate)
    elif len({gpu.name for gpu in machines[0].gpus}) == 1:
        keep_speed("links", [machines[0].hostname], rate, machines[0].gpus[0].name)


def _backend_hint(backend: str, num_hosts: int) -> str:
    if backend == "nccl":
        return "NCCL_DEBUG=INFO shows why"
    if num_hosts == 1:
        return "set GLOO_SOCKET_IFNAME to lo"
    return "set GLOO_SOCKET_IFNAME to the interface that leads to the other hosts"


def _why_not(talk: Conversation) -> str:
    if talk.status is None:
        return f"no answer within {2 * SECONDS + _START_SECONDS:.0f} s"
    return talk.last_line


def _against_interface(text: str, megabits: float, hosts: Sequence[Examined]) -> CheckResult:
    interfaces = [host.interface(hosts[0]) for host in hosts]
    speeds = [interface.speed for interface in interfaces if interface is not None and interface.speed]
    if not speeds:
        return CheckResult(NAME, Status.OK, f"{text}; the speed of the interface is unknown")
    part = megabits / min(speeds)
    text = f"{text}; {100 * part:.0f} % of the interface's {min(speeds) / 1000:g} Gbit/s"
    if part >= _SLOW:
        return CheckResult(NAME, Status.OK, text)
    return CheckResult(NAME, Status.WARNING, text, "NCCL_DEBUG=INFO or `iperf3` shows where it is lost")
