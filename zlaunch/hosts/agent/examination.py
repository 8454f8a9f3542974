"""Examine hosts: ask all of them at once, then let them compare clocks and connect to the first one."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from zlaunch.frozen import dataclass
from zlaunch.hosts.agent.answers import NoAnswer, answer_of, asking_command
from zlaunch.hosts.agent.conversation import ANSWER_SECONDS, Conversation, Conversations, conversations
from zlaunch.hosts.agent.program import TRY_SECONDS
from zlaunch.hosts.agent.ssh import CONNECT_SECONDS
from zlaunch.hosts.cluster.topology import Host, Reach, Topology
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.network import PING_SECONDS, Interface
from zlaunch.hosts.machine.question import Question

_CLOCK_ROUNDS, _CLOCK_SECONDS = 2, 5.0


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

    host: Host
    seconds: float = 0.0
    """From the start of ssh to its answer."""
    facts: MachineFacts | None = None
    failure: NoAnswer | None = None
    """Why there are no facts."""
    clock: Clock | None = None
    reach: Reachability | None = None

    @property
    def name(self) -> str:
        """The name of the host."""
        return self.host.name

    @property
    def has_answered(self) -> bool:
        """Whether zlaunch runs there."""
        return self.facts is not None or (self.failure is not None and self.failure.has_reached)

    def interface(self, first: "Examined") -> Interface | None:
        """The interface that leads to the first host; of the first one, that which it was reached at."""
        if self.facts is None or self.facts.network is None:
            return None
        sources = [self.host.addr, *addresses_of(self.facts)[:1]]
        if self is not first and self.reach is not None:
            sources[0] = self.reach.source
        interfaces = self.facts.network.interfaces
        by_address = {interface.address: interface for interface in interfaces if interface.address}
        return next((by_address[source] for source in sources if source in by_address), None)


def examine(
    topology: Topology, port: int, question: Question, waiting: Callable[[list[str]], None]
) -> list[Examined]:
    """Examine hosts; this machine, under any of its names, without ssh.

    The first one listens on a port, 0 for any that is free. `waiting` gets the names of the hosts that have
    not answered yet.
    """
    hosts, reach = {host.name: host for host in topology.hosts}, topology.reach
    commands = {name: asking_command(host, question, reach) for name, host in hosts.items()}
    seconds = CONNECT_SECONDS + ANSWER_SECONDS
    with conversations(commands, seconds + 4 * TRY_SECONDS + 2 * PING_SECONDS) as talks:
        talks.wait_for(1, seconds, waiting=waiting)
        examined = {talk.name: _examined(talk, hosts[talk.name], reach) for talk in talks.all}
        facts = {name: known.facts for name, known in examined.items() if known.facts is not None}
        clocks = _clocks(talks, facts)
        reaches = _reaches(talks, topology.hosts[0], port, facts) if len(hosts) > 1 else {}
    for name, known in examined.items():
        examined[name] = replace(known, clock=clocks.get(name), reach=reaches.get(name))
    return [*examined.values()]


def _examined(talk: Conversation, host: Host, reach: Reach) -> Examined:
    answer = answer_of(talk, host, reach)
    took = talk.answers[0][0] - talk.started if talk.answers else 0.0
    if isinstance(answer, NoAnswer):
        return Examined(host, took, failure=answer)
    return Examined(host, took, answer)


def _clocks(talks: Conversations, facts: Mapping[str, MachineFacts]) -> dict[str, Clock]:
    """Compare the clocks with the one here, corrected by half of the round trip, which bounds the error."""
    best: dict[str, Clock] = {}
    asked = {name: ["clock"] for name in facts}
    for _ in range(_CLOCK_ROUNDS):
        here = time.time() - time.monotonic()
        for name, (there, sent, came) in talks.ask(asked, _CLOCK_SECONDS).items():
            clock = Clock(there - (here + (sent + came) / 2), (came - sent) / 2)
            if name not in best or clock.error < best[name].error:
                best[name] = clock
    return best


def _reaches(
    talks: Conversations, first: Host, port: int, facts: Mapping[str, MachineFacts]
) -> dict[str, Reachability]:
    """Have the first host listen, and all others connect to it."""
    if first.name not in facts:
        return {}
    listening = talks.ask({first.name: ["listen", port]}, TRY_SECONDS).get(first.name)
    if listening is None or "port" not in listening[0]:
        error = "no answer" if listening is None else listening[0]["error"]
        return {first.name: Reachability(port, {"": error}, None)}
    addresses = addresses_of(facts[first.name]) if first.addr is None else [first.addr]
    if not addresses:
        return {}
    port = int(listening[0]["port"])
    asked = {name: ["connect", port, *addresses] for name in facts if name != first.name}
    heard = talks.ask(asked, TRY_SECONDS * len(addresses) + 1)
    works = {name: _working(answer) for name, (answer, _, _) in heard.items()}
    pinged = {name: ["mtu", address] for name, address in works.items() if address}
    measured = talks.ask(pinged, 2 * PING_SECONDS + 1)
    sizes = {name: (int(size), str(state)) for name, ((size, state), _, _) in measured.items()}
    reaches = {}
    for name, (answer, _, _) in heard.items():
        errors = {address: error for address, (error, _) in answer.items()}
        reaches[name] = Reachability(port, errors, _source(answer), sizes.get(name))
    return reaches


def _working(answer: Mapping[str, tuple[str | None, str | None]]) -> str | None:
    return next((address for address, (error, _) in answer.items() if error is None), None)


def _source(answer: Mapping[str, tuple[str | None, str | None]]) -> str | None:
    return next((source for error, source in answer.values() if error is None), None)


def addresses_of(facts: MachineFacts) -> list[str]:
    """Addresses of the first host: where ssh reached it, and the one that DeepSpeed's runner gives to all."""
    first = None if facts.network is None else facts.network.first_address
    return [*dict.fromkeys(filter(None, (facts.connection.reached_at, first)))]


def median_offset(clocks: Sequence[Clock]) -> float:
    """The offset that half of the hosts have."""
    return statistics.median([clock.offset for clock in clocks]) if clocks else 0.0
