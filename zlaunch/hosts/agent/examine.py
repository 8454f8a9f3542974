"""Examine hosts: ask all of them at once, then let them compare clocks and connect to the first one."""

import os
import shlex
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zlaunch.hosts.agent.conversation import (
    ANSWER_SECONDS,
    Conversation,
    Conversations,
    conversations,
    local_words,
    remote_words,
)
from zlaunch.hosts.agent.host import CONNECT_SECONDS as REACH_SECONDS
from zlaunch.hosts.agent.python_of_host import is_here, own_program, path_here
from zlaunch.hosts.agent.questions import Facts, Questions
from zlaunch.hosts.agent.remote import srun_command
from zlaunch.hosts.agent.ssh import destination, ssh_command
from zlaunch.hosts.agent.ssh_errors import CONNECT_SECONDS, explain
from zlaunch.hosts.cluster.topology import Host, Reach
from zlaunch.hosts.environment import forwarded
from zlaunch.hosts.machine.network import PING_SECONDS
from zlaunch.hosts.machine.resources import local_names

_CLOCK_ROUNDS, _CLOCK_SECONDS = 2, 5.0
_TOO_LATE, _BROKEN = 124, 255
"""Exit statuses of `timeout`, and of ssh for an error of its own."""


@dataclass(frozen=True)
class Clock:
    """How far a clock is ahead of the one here, in seconds, and how far off that may be."""

    offset: float
    error: float


@dataclass(frozen=True)
class Reachability:
    """Whether a host can connect to the first one."""

    port: int
    addresses: Mapping[str, str | None]
    """Address of the first host → the error, or None."""
    source: str | None
    """Its own address from which it does."""
    mtu: tuple[int, str] | None = None
    """The size of the largest packet, and whether it arrives; see `measure_mtu`."""


@dataclass(frozen=True)
class Examined:
    """What became known of one host."""

    name: str
    seconds: float
    """From the start of ssh to its answer."""
    facts: Facts | None = None
    failure: tuple[str, str, str | None] | None = None
    """Row, message and hint, if there is no answer."""
    clock: Clock | None = None
    reach: Reachability | None = None
    addr: str | None = None
    """The address for the other hosts, if the hostfile has one."""

    def interface(self, first: "Examined") -> Mapping[str, Any] | None:
        """The interface that leads to the first host; of the first one, that which it was reached at."""
        if self.facts is None or "network" not in self.facts:
            return None
        network = self.facts["network"]
        reached = network["reached_at"] or next(iter(addresses_of(self.facts)), "")
        sources = [self.addr, reached]
        if self is not first and self.reach is not None:
            sources = [self.reach.source, reached]
        by_address = {one["address"]: one for one in network["interfaces"]}
        return next((by_address[source] for source in sources if source in by_address), None)


@dataclass(frozen=True)
class Targets:
    """The hosts, in the order of their ranks, and how programs are started there."""

    hosts: Sequence[Host]
    reach: Reach = Reach.SSH
    """Over ssh, or with srun inside an allocation of Slurm."""
    port: int = 0
    """The port of the rendezvous; 0 for any that is free."""

    @property
    def names(self) -> list[str]:
        """The names of the hosts."""
        return [host.name for host in self.hosts]

    @property
    def via(self) -> str:
        """The program that reaches them."""
        return self.reach.value

    def host(self, name: str) -> Host:
        """The host of a name."""
        return next(host for host in self.hosts if host.name == name)

    def command(self, name: str, remote: str) -> list[str]:
        """The command line here that runs a line of shell on a host."""
        host = self.host(name)
        return srun_command(host, remote) if self.reach is Reach.SRUN else ssh_command(host, remote)


def examine(
    targets: Targets, questions: Questions, hostname: str, told: Callable[[list[str]], None]
) -> list[Examined]:
    """Examine hosts by name; this machine, under any of its names, without ssh.

    `told` gets the names of the hosts that have not answered yet.
    """
    names, route = targets.names, targets
    there = questions._replace(environ=forwarded(os.environ))
    commands = {
        name: local_words(_asking(targets.host(name), questions))
        if is_local(name, targets, hostname)
        else targets.command(name, remote_words(_asking(targets.host(name), there)))
        for name in names
    }
    seconds = CONNECT_SECONDS + ANSWER_SECONDS
    with conversations(commands, seconds + 4 * REACH_SECONDS + 2 * PING_SECONDS) as talks:
        talks.wait_for(1, seconds, told=told)
        clocks = _clocks(talks)
        reaches = _reaches(talks, targets) if len(names) > 1 else {}
        found = [_examined(one, clocks.get(one.name), reaches.get(one.name), route) for one in talks.all]
    return [replace(one, addr=host.addr) for one, host in zip(found, targets.hosts, strict=True)]


def _asking(host: Host, questions: Questions) -> list[str]:
    """Write the command line for a host, with the Python that the hostfile names for it."""
    if host.python is not None:
        is_own = not is_here(host)
        questions = questions._replace(python=None if is_own else str(path_here(host, None)))
    return own_program(host, "zlaunch.hosts.agent.host", questions.to_json())


def is_local(name: str, targets: Targets, hostname: str) -> bool:
    """Whether a host is this machine, so that no ssh is needed; srun starts programs everywhere."""
    return targets.via == "ssh" and name in local_names(hostname)


def _examined(one: Conversation, clock: Clock | None, reach: Reachability | None, route: Targets) -> Examined:
    if one.answers:
        when, facts = one.answers[0]
        return Examined(one.name, when - one.started, facts, None, clock, reach)
    return Examined(one.name, 0.0, failure=_failure(one, route))


def _failure(one: Conversation, route: Targets) -> tuple[str, str, str | None]:
    said = one.before
    if said is None:
        if one.status in (None, _TOO_LATE):
            again = "try again: files are cached after the first read"
            return "zlaunch", f"no answer within {ANSWER_SECONDS:.0f} s", again
        if one.status == _BROKEN:
            return (
                route.via,
                "the connection was lost",
                f"`ssh -v {shlex.join(destination(route.host(one.name)))} true` may show why",
            )
        same = "the same Python environment and directory must be at the same path on every host"
        return "zlaunch", f"cannot be started: {one.last_words}", same
    if route.via == "srun":
        return (
            "srun",
            one.last_words,
            f"`srun --nodelist={shlex.quote(one.name)} true` shows whether Slurm starts it",
        )
    failure = explain("timed out" if one.status in (None, _TOO_LATE) else said, route.host(one.name))
    return "ssh", failure.message, failure.hint


def _clocks(talks: Conversations) -> dict[str, Clock]:
    """Compare the clocks with the one here, corrected by half of the round trip, which bounds the error."""
    found: dict[str, Clock] = {}
    answered = {one.name: "clock" for one in talks.all if one.answers}
    for _ in range(_CLOCK_ROUNDS):
        here = _wall_minus_monotonic()
        for name, (there, sent, came) in talks.ask(answered, _CLOCK_SECONDS).items():
            clock = Clock(there - (here + (sent + came) / 2), (came - sent) / 2)
            if name not in found or clock.error < found[name].error:
                found[name] = clock
    return found


def _wall_minus_monotonic() -> float:
    return time.time() - time.monotonic()


def _reaches(talks: Conversations, targets: Targets) -> dict[str, Reachability]:
    """Have the first host listen, and all others connect to it."""
    names, port, given = targets.names, targets.port, targets.hosts[0].addr
    answered = {one.name: one for one in talks.all if one.answers}
    if names[0] not in answered:
        return {}
    first = answered[names[0]].answers[0][1]
    listening = talks.ask({names[0]: f"listen {port}"}, REACH_SECONDS).get(names[0])
    if listening is None or "port" not in listening[0]:
        error = "no answer" if listening is None else listening[0]["error"]
        return {names[0]: Reachability(port, {"": error}, None)}
    found, addresses = int(listening[0]["port"]), addresses_of(first) if given is None else [given]
    line = f"connect {found} {' '.join(addresses)}"
    asked = {name: line for name in answered if name != names[0]}
    heard = talks.ask(asked, REACH_SECONDS * len(addresses) + 1) if addresses else {}
    works = {name: _working(answer) for name, (answer, _, _) in heard.items()}
    measured = talks.ask({name: f"mtu {one}" for name, one in works.items() if one}, 2 * PING_SECONDS + 1)
    sizes = {name: (int(size), str(state)) for name, ((size, state), _, _) in measured.items()}
    return {
        name: Reachability(
            found, {one: error for one, (error, _) in answer.items()}, _source(answer), sizes.get(name)
        )
        for name, (answer, _, _) in heard.items()
    }


def _working(answer: Mapping[str, tuple[str | None, str | None]]) -> str | None:
    return next((address for address, (error, _) in answer.items() if error is None), None)


def _source(answer: Mapping[str, tuple[str | None, str | None]]) -> str | None:
    return next((source for error, source in answer.values() if error is None), None)


def addresses_of(facts: Facts) -> list[str]:
    """Addresses of the first host: where ssh reached it, and the one that DeepSpeed's runner gives to ranks.

    The runner takes the first word of `hostname -I`.
    """
    network = facts["network"]
    first = next(
        (one["address"] for one in network["interfaces"] if one["address"] and one["name"] != "lo"), None
    )
    return [*dict.fromkeys(filter(None, (network["reached_at"], first)))]


def median_offset(clocks: Sequence[Clock]) -> float:
    """The offset that half of the hosts have."""
    return statistics.median([one.offset for one in clocks]) if clocks else 0.0
