"""Several zlaunch processes that start one job: one on every node, or one for every rank.

Member 0 leads. The others connect to it, tell what their machine has, and learn what all machines have, so
that each makes the same plan. The leader compares the plans, then tells every member to start. An error of
one member is an error of all, and so is the end of the job.
"""

import contextlib
import os
import secrets
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from zlaunch.errors import ExitStatus, Refused, Unavailable, ZlaunchError
from zlaunch.frozen import dataclass
from zlaunch.hosts.adapters import adapter_of
from zlaunch.hosts.agent import own_code
from zlaunch.hosts.agent.channel import Channel, Message, wait_for_any
from zlaunch.hosts.agent.handshake import (
    LEADER,
    OTHER_SECRET,
    HandshakeListener,
    WrongSecret,
    connect,
    prove,
)
from zlaunch.hosts.cluster.started_by import Member
from zlaunch.hosts.cluster.topology import Host, Reach, Topology
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.json_lines import plain
from zlaunch.secrets import SECRET, hide_in
from zlaunch.units import duration

NOTE_SECONDS = 10.0
"""How long to wait before saying so, and between two such notes."""

_SAME_SECRET = f"set the same {SECRET} on every node, or unset it everywhere"
_SILENCE = float("inf")  # a member may plan for minutes

FAILURE_SECONDS = 20.0
"""How long a member that has failed waits for others to tell them."""

Sent = TypeVar("Sent")


class MemberFailed(ZlaunchError):
    """Another member cannot take part."""

    def __init__(
        self, message: str, hint: str | None = None, status: ExitStatus = ExitStatus.UNAVAILABLE
    ) -> None:
        """Take over the exit status of that member."""
        super().__init__(message, hint)
        self.status = status


@dataclass(frozen=True)
class MemberFacts:
    """What a member tells about itself."""

    host: str
    devices: tuple[int, ...]
    facts: MachineFacts


@dataclass(frozen=True)
class Start:
    """What the leader tells the others at the start of an attempt."""

    port: int
    token: str
    run_directory: str


@dataclass(frozen=True)
class Ending:
    """How the job ended, as the leader has found out."""

    status: int
    lines: tuple[str, ...]


class Rendezvous:
    """The connections between the members of a job."""

    def __init__(self, member: Member, timeout: float, note: Callable[[str], None], secret: str = "") -> None:
        """Prepare to meet; `timeout` is how long to wait for the others, in seconds.

        All members prove that they know the `secret`; without one, they trust their network.
        """
        self.member = member
        self._secret = secret
        self._timeout = timeout
        self._note = note
        self._channels: dict[int, Channel] = {}
        self.names: tuple[str, ...] = ()
        """The hosts of all members, each name once."""
        self.run_directory = ""
        """That of the leader."""
        self._noted = time.monotonic()
        self._has_begun = self._has_tried = False
        self._received: list[int] = []
        self._ready: set[int] = set()
        self._found: tuple[Topology, dict[str, MachineFacts]] | None = None

    @property
    def leads(self) -> bool:
        """Whether this is the leader."""
        return self.member.number == 0

    @staticmethod
    def facts_here(devices: tuple[int, ...], here: MachineFacts) -> "MemberFacts":
        """Describe this member to the others, with the devices of its ranks."""
        return MemberFacts(os.uname().nodename, devices, here)

    def join(self, mine: MemberFacts, run_directory: str) -> tuple[Topology, dict[str, MachineFacts]]:
        """Meet all members; return the hosts in their order, and the facts of the others by name.

        Raises Unavailable if not all come in time, MemberFailed if one of them has failed. They meet once: an
        attempt after a failure has the same hosts.
        """
        if self._found is None:
            self._found = self._join(mine, run_directory)
        return self._found

    def _join(self, mine: MemberFacts, run_directory: str) -> tuple[Topology, dict[str, MachineFacts]]:
        self._has_tried = True
        self._meet(self._timeout)
        if self.leads:
            members = [mine, *map(self._facts_of, range(1, self.member.count))]
            self.tell({"everyone": plain(members), "run_directory": run_directory})
            self.run_directory = run_directory
        else:
            self.tell({"hello": plain(mine)})
            welcome = self._hear(0, "everyone", self._timeout)
            members = _read_message(list[MemberFacts], welcome["everyone"], self._who(0))
            self.run_directory = str(welcome["run_directory"])
        self.names = _unique([member.host for member in members])
        hosts: list[Host] = []
        others: dict[str, MachineFacts] = {}
        for number, (name, member) in enumerate(zip(self.names, members, strict=True)):
            hosts.append(Host(name, member.devices))
            if number != self.member.number:
                hardware = replace(member.facts.machine, hostname=name)
                others[name] = replace(member.facts, hardware=hardware)
        return Topology(tuple(hosts), Reach.JOINED), others

    def compare_plans(self, parts: Mapping[str, object]) -> None:
        """Compare the parts of all plans; raise MemberFailed with the member and the part that differs."""
        if not self.leads:
            self.tell({"parts": dict(parts)})
            self._hear(0, "agreed", self._timeout)
            return
        for number in range(1, self.member.count):
            theirs = self._hear(number, "parts", self._timeout)["parts"]
            if not isinstance(theirs, Mapping):
                theirs = {}
            for name, value in parts.items():
                if theirs.get(name) != value:
                    where, other, own = _first_difference(theirs.get(name), value)
                    raise MemberFailed(
                        f"{self._who(number)} and {self._who(0)} differ in the {name}{where}: "
                        f"{_abbreviated(hide_in(other, where))} and {_abbreviated(hide_in(own, where))}",
                        f"start every {self.member.kind} with the same {name}",
                        ExitStatus.REFUSED,
                    )
        self.tell({"agreed": True})

    def report_ready(self) -> None:
        """Tell the leader that a rank may start here."""
        self.tell({"ready": True})

    def wait_until_ready(self, busy: Callable[[str, str], None]) -> None:
        """Wait until a rank may start everywhere; raise MemberFailed for a member that fails or is lost."""
        began = time.monotonic()
        while missing := [number for number in self._channels if number not in self._ready]:
            self._wait(0.5)
            for number, channel in self._channels.items():
                if self._take(number, "ready"):
                    self._ready.add(number)
                elif number in missing and channel.closed:
                    raise MemberFailed(f"lost {self._who(number)}")
            busy(f"waiting for the native ops of {self._who(missing[0])}", duration(time.monotonic() - began))

    def begin(self, start: Start) -> None:
        """Tell the members to start an attempt."""
        self._has_begun = True
        self.tell({"start": asdict(start)})

    def key(self, token: str) -> str:
        """Make the secret of one attempt from its token and that of the job, which is never sent."""
        return prove(self._secret, LEADER, token)

    def finish(self, verdict: Ending) -> None:
        """Tell the members how the job ended."""
        self.tell({"verdict": {"status": verdict.status, "lines": list(verdict.lines)}})
        self.close()

    def next_order(self, last: Start | None = None) -> Start | Ending:
        """Wait for the leader's next word after the last one; the end of the job is the final one."""
        while True:
            messages = self.poll(0.2)[0]
            for verdict in _objects(messages, "verdict"):
                return Ending(int(verdict["status"]), tuple(map(str, verdict["lines"])))
            for start in _objects(messages, "start")[-1:]:
                return _read_message(Start, start, self._who(0))
            if self._channels[0].closed:
                hint = f"start the job again on every {self.member.kind}"
                if last is not None:
                    why = f"`zlaunch runs why {shlex.quote(last.run_directory)}` on {self.names[0]}"
                    hint = f"{why} may say why; then {hint}"
                raise MemberFailed(f"lost {self._who(0)}; the job has ended", hint)

    def poll(self, seconds: float = 0.0) -> dict[int, list[Message]]:
        """Return new messages by member; raise MemberFailed if one says that it has failed."""
        self._wait(seconds)
        received = {number: channel.receive() for number, channel in self._channels.items()}
        for number, messages in received.items():
            for message in messages:
                self._raise_failure(number, message)
        return received

    def _wait(self, seconds: float) -> None:
        wait_for_any(list(self._channels.values()), seconds)
        self.keep()

    def keep(self) -> None:
        """Read what has come, and keep it for later; pass on signals."""
        self._forward()
        for channel in self._channels.values():
            channel.listen()

    def signals(self) -> list[int]:
        """Return the signals that other members were asked to stop with; what else they say is ignored."""
        numbers: list[int] = []
        with contextlib.suppress(MemberFailed):
            for messages in self.poll().values():
                signals = [message.get("signal") for message in messages]
                numbers += [number for number in signals if isinstance(number, int)]
        return numbers

    def forward(self, number: int) -> None:
        """Pass a signal to the leader soon: a signal handler may not send."""
        self._received.append(number)

    def _forward(self) -> None:
        while self._received:
            self.tell({"signal": int(self._received.pop(0))})

    def tell(self, message: Mapping[str, object]) -> None:
        """Send a message to all others, or to the leader."""
        for channel in self._channels.values():
            channel.send(message)

    def fail(self, error: ZlaunchError) -> None:
        """Tell the others that this member cannot take part, if they can be reached in a moment.

        Once a job has begun, an attempt that cannot be prepared is not tried, and changes nothing else.
        """
        if self._has_begun:
            return
        with contextlib.suppress(ZlaunchError):
            if not self._channels and not self._has_tried:
                self._meet(FAILURE_SECONDS)
        self.tell(_failure_message(error))
        self.close()

    def end_with(self, error: ZlaunchError) -> None:
        """Tell the others the error that ends this member, whether the job has begun or not."""
        if self._has_begun:
            self.finish(Ending(int(error.status), (f"error: {'; '.join(error.reasons)}",)))
        else:
            self.fail(error)

    def close(self) -> None:
        """End all connections."""
        for channel in self._channels.values():
            channel.close(linger=5.0)
        self._channels.clear()

    def _meet(self, timeout: float) -> None:
        if self.leads:
            self._gather(timeout)
        else:
            self._connect(timeout)

    def _gather(self, timeout: float) -> None:
        """Wait until all others have connected, and let each in by the number that it gives."""
        address, count = f"{self.member.address}:{self.member.port}", self.member.count
        try:
            listener = HandshakeListener(self.member.port, self._secret, _SILENCE, self._note_rejected)
        except OSError as error:
            raise Unavailable(
                f"cannot listen on port {self.member.port} for the other members: {error.strerror}",
                "set MASTER_PORT to a free port, the same on every node; only one of them may have number 0",
            ) from None
        began = self._noted = time.monotonic()
        with contextlib.closing(listener):
            while missing := [number for number in range(1, count) if number not in self._channels]:
                who = f"{self.member.kind} {', '.join(map(str, missing))} of {count}"
                if time.monotonic() - began > timeout:
                    raise Unavailable(
                        f"{who} did not connect to {address} within {duration(timeout)}",
                        "start zlaunch on every node, with the same address",
                    )
                so_far = f"{duration(time.monotonic() - began)} of {duration(timeout)}"
                self._note_wait(f"waiting at {address} for {who}, {so_far}")
                self.keep()  # a lost member may connect again
                for channel, hello in listener.accept(0.5):
                    self._add_member(channel, hello)

    def _note_wait(self, text: str) -> None:
        if time.monotonic() - self._noted > NOTE_SECONDS:
            self._noted = time.monotonic()
            self._note(text)

    def _number(self, hello: Message) -> int | None:
        number = hello.get("member")
        if type(number) is int and 0 < number < self.member.count:
            return number
        return None

    def _note_rejected(self, hello: Message) -> None:
        if number := self._number(hello):
            self._note(f"rejected a connection that claims to be {self._who(number)}: {OTHER_SECRET}")

    def _add_member(self, channel: Channel, hello: Message) -> None:
        if (count := hello.get("count")) != self.member.count:
            kind = self.member.kind
            raise self._refused(
                channel,
                f"{kind} {hello.get('member')} ({hello.get('host')}) was started as one of {count} {kind}s, "
                f"and {kind} 0 as one of {self.member.count}",
                f"set the same number of {kind}s everywhere",
            )
        if (other := own_code.why_other(hello.get(own_code.MEMBER))) is not None:
            who = f"{self.member.kind} {hello.get('member')} ({hello.get('host')})"
            raise self._refused(channel, f"{who} {other}", "install the same zlaunch everywhere")
        if (number := self._number(hello)) is None:
            channel.close()
        elif number in self._channels and not self._channels[number].closed:
            raise self._refused(
                channel,
                f"two zlaunch processes are {self.member.kind} {number} of {self.member.count}",
                f"give every {self.member.kind} its own number",
            )
        else:
            self._channels[number] = channel

    def _refused(self, channel: Channel, message: str, hint: str) -> MemberFailed:
        """Tell a member that is not let in why, and return the error for the others."""
        error = MemberFailed(message, hint)
        channel.send(_failure_message(error))
        channel.close(linger=1.0)
        return error

    def _connect(self, timeout: float) -> None:
        """Connect to the leader, which may start later."""
        me, leader, at = self.member, f"{self.member.kind} 0", f"{self.member.address}:{self.member.port}"
        hello = {"member": me.number, "count": me.count, "host": os.uname().nodename}
        hello[own_code.MEMBER] = own_code.own_code()
        self._noted = time.monotonic()

        def waiting(why: str) -> None:
            self._note_wait(f"waiting for {leader} at {at}: {why}")

        where = me.address, me.port
        try:
            channel = connect(where, self._secret, hello, timeout, silence=_SILENCE, waiting=waiting)
        except WrongSecret as error:
            raise MemberFailed(f"{leader} {error}", _SAME_SECRET) from None
        except OSError as error:
            raise Unavailable(
                f"{leader} did not answer at {at} within {duration(timeout)}: {error.strerror or error}",
                "start zlaunch there, too; its port must be reachable from here",
            ) from None
        self._channels[0] = channel

    def _facts_of(self, number: int) -> MemberFacts:
        hello = self._hear(number, "hello", self._timeout)["hello"]
        return _read_message(MemberFacts, hello, self._who(number))

    def _hear(self, number: int, name: str, timeout: float) -> Message:
        """Wait for a message with a member of this name, and keep the others alive meanwhile."""
        channel, deadline = self._channels[number], time.monotonic() + timeout
        while (message := self._take(number, name)) is None:
            if channel.closed or time.monotonic() > deadline:
                if channel.closed:
                    raise MemberFailed(f"lost {self._who(number)}")
                raise MemberFailed(f"{self._who(number)} did not answer")
            wait_for_any([channel], 0.5)
            self.keep()
        return message

    def _take(self, number: int, name: str) -> Message | None:
        """Return a message with this name, if it has come; raise MemberFailed if one tells a failure."""
        if failure := self._channels[number].wait_for("failed"):
            self._raise_failure(number, failure)
        return self._channels[number].wait_for(name)

    def _raise_failure(self, number: int, message: Message) -> None:
        if isinstance(failed := message.get("failed"), dict):
            text = str(failed.get("message"))
            if not failed.get("told"):
                text = f"{self._who(number)}: {text}"
            known = [status for status in ExitStatus if status == failed.get("status")]
            raise MemberFailed(text, failed.get("hint"), next(iter(known), ExitStatus.UNAVAILABLE))

    def _who(self, number: int) -> str:
        if number < len(self.names):
            return f"{self.member.kind} {number} ({self.names[number]})"
        return f"{self.member.kind} {number}"


def _objects(messages: Sequence[Message], name: str) -> list[dict[str, Any]]:
    return [found for one in messages if isinstance(found := one.get(name), dict)]


def _read_message(kind: Callable[..., Sent], value: object, who: str) -> Sent:
    """Read what a member tells; raise MemberFailed for anything else."""
    try:
        message: Sent = adapter_of(kind).validate_python(value)
    except ValueError:
        raise MemberFailed(f"{who} sent what cannot be read", "install the same zlaunch everywhere") from None
    return message


def _unique(hosts: Sequence[str]) -> tuple[str, ...]:
    """Number the members of one host."""
    names = list(hosts)
    for number, host in enumerate(hosts):
        if hosts.count(host) > 1:
            names[number] = f"{host}/{number}"
    return tuple(names)


def _failure_message(error: ZlaunchError) -> Message:
    """Write an error for other members; `told` is whether it names the member that it comes from."""
    hint = error.hint
    if isinstance(error, Refused):
        hint = hint or error.findings[0].hint
    failed = {"message": "; ".join(error.reasons), "hint": hint, "status": int(error.status)}
    return {"failed": {**failed, "told": isinstance(error, MemberFailed)}}


def _first_difference(one: object, other: object, path: str = "") -> tuple[str, object, object]:
    """Return where two values differ, as a part of a sentence, and what they have there."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        key = next((key for key in {**other, **one} if one.get(key) != other.get(key)), None)
        if key is not None:
            inner = ".".join(filter(None, (path, str(key))))
            return _first_difference(one.get(key), other.get(key), inner)
    if not path:
        return "", one, other
    return f" at `{path}`", one, other


def _abbreviated(value: object) -> str:
    text = str(value)
    if isinstance(value, list):
        text = " ".join(map(str, value))
    if len(text) > 60:
        text = f"{text[:60]}…"
    return f"`{text}`"


def new_token() -> str:
    """Make the secret by which the members of one run know each other."""
    return secrets.token_urlsafe(24)
