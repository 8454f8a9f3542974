"""Messages between zlaunch and the other hosts of a job: JSON objects, one per line, over any two files.

They are the pipes of an ssh or srun process, or a socket. Both ends send something every few seconds, so that
a silent peer is a lost one: TCP itself would take a quarter of an hour to notice a link that is down.
"""

import contextlib
import json
import os
import select
import time
from collections.abc import Mapping, Sequence

Message = dict[str, object]

ALIVE_SECONDS = 2.0
"""How often each end says that it is there."""

SILENCE_SECONDS = 15.0
"""A peer that is silent for this long is lost."""

_READ_BYTES = 1 << 16
_MOST_WAITING_BYTES = 64 << 20
"""A peer that leaves more than this unread is lost."""


class Channel:
    """One end of a connection; it never blocks, and an error closes it."""

    def __init__(self, reader: int, writer: int, silence: float = SILENCE_SECONDS) -> None:
        """Take over two file descriptors, which may be the same socket."""
        self._silence = silence
        self.reader, self._writer = reader, writer
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        self._incoming = self._outgoing = b""
        self._heard = self._said = time.monotonic()
        self.closed = False
        """Whether the peer is gone."""

    def send(self, message: Mapping[str, object]) -> None:
        """Queue a message, and send as much as the peer takes now."""
        self._said = time.monotonic()
        self._outgoing += json.dumps(message).encode() + b"\n"
        self._flush()

    def receive(self) -> list[Message]:
        """Return the messages that have arrived; on the way, send what is queued and a sign of life."""
        now = time.monotonic()
        if now - self._said > ALIVE_SECONDS:
            self.send({})
        self._flush()
        self._read()
        if now - self._heard > self._silence:
            self.closed = True
        *lines, self._incoming = self._incoming.split(b"\n")
        return [message for line in lines if (message := _parsed(line))]

    @property
    def silent_seconds(self) -> float:
        """How long nothing was heard from the peer."""
        return time.monotonic() - self._heard

    def close(self, linger: float = 0.0) -> None:
        """Close the connection, after at most `linger` seconds in which the peer may take what is queued."""
        deadline = time.monotonic() + linger
        while self._outgoing and not self.closed and time.monotonic() < deadline:
            select.select([], [self._writer], [], 0.1)
            self._flush()
        self.closed = True
        for number in {self.reader, self._writer}:
            with contextlib.suppress(OSError):
                os.close(number)

    def _flush(self) -> None:
        while self._outgoing and not self.closed:
            try:
                sent = os.write(self._writer, self._outgoing[:_READ_BYTES])
            except BlockingIOError:
                self.closed = len(self._outgoing) > _MOST_WAITING_BYTES
                return
            except OSError:
                self.closed = True
                return
            self._outgoing = self._outgoing[sent:]

    def _read(self) -> None:
        while not self.closed:
            try:
                data = os.read(self.reader, _READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self.closed = not data
            self._incoming += data
            self._heard = time.monotonic() if data else self._heard


def wait_for_any(channels: Sequence[Channel], seconds: float) -> None:
    """Wait until one of these has something to read, at most so long."""
    select.select([one.reader for one in channels if not one.closed], [], [], seconds)


def _parsed(line: bytes) -> Message | None:
    """Read a line; what a login shell prints is no message."""
    with contextlib.suppress(ValueError):
        message = json.loads(line)
        return message if isinstance(message, dict) else None
    return None
