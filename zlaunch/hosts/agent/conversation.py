"""Start a program on many hosts at once, that of `zlaunch.hosts.agent.program` or another, and talk to it.

Every host is asked at the same moment, and answers are read as they come: nobody waits for another host.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from zlaunch.hosts.agent import own_code
from zlaunch.hosts.agent.channel import Channel, wait_for_any
from zlaunch.hosts.agent.host_command import GREETING
from zlaunch.json_lines import ANSWER
from zlaunch.process import PipedProgram

ANSWER_SECONDS = 60.0
"""Python may have to be read over a network file system first."""
_ENDED = "zlaunch ended"
_HEAR_ALL = f"""timeout --foreground "$0" "$@" 2>&1; printf '\\n{{"{_ENDED}": %d}}\\n' $?"""
"""The shell keeps the output however ssh ends; an ssh master process holds no pipe of ours."""
_END_SECONDS = 1.0
_TOO_LATE, _BROKEN = 124, 255
"""Exit statuses of `timeout`, and of ssh for an error of its own."""
_NEVER = float("inf")


class Conversation:
    """One host: the program there, and what it said."""

    def __init__(self, name: str, argv: Sequence[str], seconds: float) -> None:
        """Start a command, which is ended after so many seconds."""
        shell = ["/bin/sh", "-c", _HEAR_ALL, str(seconds), *argv]
        self.name = name
        self.started = time.monotonic()
        self.program = PipedProgram(shell, os.environ, ends_with_stdin=True)
        streams = self.program.take_streams()
        self.channel = Channel(*streams, first=_NEVER, silence=_NEVER, alive=_NEVER)
        self.code: object = None
        """Which zlaunch runs there; None until it has said that."""
        self.answers: list[tuple[float, Any]] = []
        """When each came, and what it was."""
        self.status: int | None = None
        """The exit status of ssh, or of the program here; None while it runs."""

    @property
    def is_over(self) -> bool:
        """Whether there will be no more answers."""
        return self.status is not None or self.channel.closed

    @property
    def has_reached(self) -> bool:
        """Whether a shell has started on the host."""
        return any(line.endswith(GREETING.encode()) for line in self.channel.printed)

    @property
    def is_too_late(self) -> bool:
        """Whether time is up."""
        return self.status in (None, _TOO_LATE)

    @property
    def is_broken(self) -> bool:
        """Whether the connection was lost."""
        return self.status == _BROKEN

    @property
    def printed(self) -> str:
        """What ssh and the host have printed, without the answers."""
        return b"\n".join(self.channel.printed).decode("utf-8", "replace").strip()

    @property
    def last_line(self) -> str:
        """The last line of it."""
        return self.printed.rpartition("\n")[2] or "it printed nothing"

    def hear(self) -> None:
        """Read what has come."""
        for message in self.channel.receive():
            if ANSWER in message:
                self._take(message[ANSWER])
            elif isinstance(status := message.get(_ENDED), int):
                self.status = status

    def _take(self, answer: Any) -> None:
        if isinstance(answer, dict) and own_code.MEMBER in answer:
            self.code = answer[own_code.MEMBER]
        else:
            self.answers.append((time.monotonic(), answer))

    def request(self, words: Sequence[object]) -> float:
        """Send a request; return when."""
        self.channel.send({"request": words})
        return time.monotonic()


class Conversations:
    """All hosts at once."""

    def __init__(self, commands: Mapping[str, Sequence[str]], seconds: float) -> None:
        self.all = [Conversation(name, argv, seconds) for name, argv in commands.items()]

    def wait_for(
        self,
        count: int,
        seconds: float,
        only: Iterable[Conversation] | None = None,
        waiting: Callable[[list[str]], None] = lambda _: None,
    ) -> None:
        """Wait until each has given this many answers, or is over; `waiting` gets the names of the others."""
        asked = self.all if only is None else [*only]
        deadline = time.monotonic() + seconds
        while silent := [talk for talk in asked if len(talk.answers) < count and not talk.is_over]:
            waiting([talk.name for talk in silent])
            if (left := deadline - time.monotonic()) <= 0:
                return
            running = [talk for talk in self.all if not talk.is_over]
            wait_for_any([talk.channel for talk in running], min(left, 0.5))
            for talk in running:
                talk.hear()

    def ask(
        self, requests: Mapping[str, Sequence[object]], seconds: float
    ) -> dict[str, tuple[Any, float, float]]:
        """Send each host a request, and wait for the answers: what it is, when it was sent, when it came."""
        asked = [talk for talk in self.all if talk.name in requests and not talk.is_over]
        before = {talk.name: len(talk.answers) for talk in asked}
        sent = {talk.name: talk.request(requests[talk.name]) for talk in asked}
        for talk in asked:  # each has answered equally often, except those that were not asked before
            left = sent[talk.name] + seconds - time.monotonic()
            self.wait_for(before[talk.name] + 1, max(0.0, left), [talk])
        answered = [talk for talk in asked if len(talk.answers) > before[talk.name]]
        return {talk.name: (talk.answers[-1][1], sent[talk.name], talk.answers[-1][0]) for talk in answered}

    def end(self) -> None:
        """Close the stdin of all programs, which ends them; those that stay are killed."""
        for talk in self.all:
            talk.channel.close()
        deadline = time.monotonic() + _END_SECONDS
        for talk in self.all:
            if talk.program.wait(max(0.0, deadline - time.monotonic())) is None:
                talk.program.kill()


@contextmanager
def conversations(commands: Mapping[str, Sequence[str]], seconds: float) -> Iterator[Conversations]:
    """Start the program on all hosts; end it everywhere in the end."""
    talks = Conversations(commands, seconds)
    try:
        yield talks
    finally:
        talks.end()
