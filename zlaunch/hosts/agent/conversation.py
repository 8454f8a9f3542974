"""Start a program on many hosts at once, that of `zlaunch.hosts.agent.program` or another, and talk to it.

Every host is asked at the same moment, and answers are read as they come: nobody waits for another host.
"""

import contextlib
import json
import os
import selectors
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zlaunch.hosts.agent.ssh import remote_line, with_python_variables
from zlaunch.hosts.json_lines import answers_in
from zlaunch.process import start_with_pipes_at_once

ANSWER_SECONDS = 60.0
"""Python may have to be read over a network file system first."""
_REACHED, _ENDED = b"zlaunch asks\n", b"zlaunch heard "
_HEAR_ALL = f'timeout --foreground "$0" "$@" 2>&1; echo "{_ENDED.decode()}$?"'
"""The shell keeps the output however ssh ends; an ssh master process holds no pipe of ours."""
_END_SECONDS = 1.0
_TOO_LATE, _BROKEN = 124, 255
"""Exit statuses of `timeout`, and of ssh for an error of its own."""


class Conversation:
    """One host: the program there, and what it said."""

    def __init__(self, name: str, argv: Sequence[str], seconds: float) -> None:
        """Start a command, which is ended after so many seconds."""
        shell = ["/bin/sh", "-c", _HEAR_ALL, str(seconds), *argv]
        self.name = name
        self.started = time.monotonic()
        self.process = start_with_pipes_at_once(shell)
        self.text = b""
        self.answers: list[tuple[float, Any]] = []
        """When each came, and what it was."""

    @property
    def status(self) -> int | None:
        """The exit status of ssh, or of the program here; None while it runs."""
        _, ended, rest = self.text.rpartition(_ENDED)
        return int(rest) if ended and rest.endswith(b"\n") else None

    @property
    def is_over(self) -> bool:
        """Whether there will be no more answers."""
        return self.status is not None or self.process.stdout is None or self.process.stdout.closed

    @property
    def has_reached(self) -> bool:
        """Whether a shell has started on the host."""
        return _REACHED in self.text

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
        """All that ssh and the host have printed."""
        return self.text.rpartition(_ENDED)[0].decode("utf-8", "replace").strip()

    @property
    def last_line(self) -> str:
        """The last line of it."""
        return self.printed.rpartition("\n")[2] or "it printed nothing"

    def hear(self) -> None:
        """Read what has come."""
        assert self.process.stdout is not None
        if not (chunk := os.read(self.process.stdout.fileno(), 1 << 16)):
            self.process.stdout.close()
            return
        now, known = time.monotonic(), self.text.rfind(b"\n") + 1
        self.text += chunk
        complete = self.text[known : self.text.rfind(b"\n") + 1]
        self.answers += [(now, answer) for answer in answers_in(complete.decode("utf-8", "replace"))]

    def request(self, words: Sequence[object]) -> float:
        """Send a request; return when."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(json.dumps(words).encode() + b"\n")
            self.process.stdin.flush()
        return time.monotonic()

    def end(self) -> None:
        """Close its stdin, which ends the program."""
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()


def remote_words(program: Sequence[str]) -> str:
    """The line of shell that runs a program on a host, in this directory, like DeepSpeed's runner."""
    return remote_line(with_python_variables(program), str(Path.cwd()), _REACHED.decode().strip())


def local_words(program: Sequence[str]) -> list[str]:
    """The command for this machine."""
    return ["/bin/sh", "-c", f'echo {_REACHED.decode().strip()}; exec "$@"', "sh", *program]


class Conversations:
    """All hosts at once."""

    def __init__(self, commands: Mapping[str, Sequence[str]], seconds: float) -> None:
        self.all = [Conversation(name, argv, seconds) for name, argv in commands.items()]
        self._selector = selectors.DefaultSelector()
        for talk in self.all:
            assert talk.process.stdout is not None
            self._selector.register(talk.process.stdout, selectors.EVENT_READ, talk)

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
            for key, _ in self._selector.select(min(left, 0.5)):
                self._hear(key.data)

    def _hear(self, talk: Conversation) -> None:
        assert talk.process.stdout is not None
        number = talk.process.stdout.fileno()
        talk.hear()
        if talk.is_over:
            self._selector.unregister(number)

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
        """End all programs; those that stay are killed."""
        for talk in self.all:
            talk.end()
        deadline = time.monotonic() + _END_SECONDS
        for talk in self.all:
            with contextlib.suppress(Exception):
                talk.process.wait(max(0.0, deadline - time.monotonic()))
            if talk.process.poll() is None:
                talk.process.kill()
                talk.process.wait()
            if talk.process.stdout is not None:
                talk.process.stdout.close()
        self._selector.close()


@contextmanager
def conversations(commands: Mapping[str, Sequence[str]], seconds: float) -> Iterator[Conversations]:
    """Start the program on all hosts; end it everywhere in the end."""
    talks = Conversations(commands, seconds)
    try:
        yield talks
    finally:
        talks.end()
