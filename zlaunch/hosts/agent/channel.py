"""Messages between zlaunch and the other hosts of a job: JSON objects, one per line, over any two files.

They are the pipes of an ssh or srun process, or a socket. Both ends send something every few seconds, so that
a silent peer is a lost one: TCP itself would take a quarter of an hour to notice a link that is down.
"""

import contextlib
import json
import os
import select
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence

Message = dict[str, object]

ALIVE_SECONDS = 2.0
"""How often each end says that it is there."""

SILENCE_SECONDS = 15.0
"""A peer that is silent for this long is lost."""

_READ_BYTES = 1 << 16
_MOST_READS = 64
"""No peer may keep its reader from all others."""
_MOST_PRINTED = 1000


class Channel:
    """One end of a connection; it never blocks, and an error closes it."""

    def __init__(
        self,
        reader: int,
        writer: int,
        *,
        first: float = SILENCE_SECONDS,
        silence: float = SILENCE_SECONDS,
        alive: float = ALIVE_SECONDS,
    ) -> None:
        """Take over two file descriptors, which may be the same socket.

        `first` is how long the peer may take to say something at all, in seconds, `silence` how long it
        may be silent after that, and `alive` after how long this end sends a sign of life.
        """
        self.reader, self.writer = reader, writer
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        self._open = {reader, writer}
        self._incoming, self._outgoing = bytearray(), bytearray()
        self._arrived: list[Message] = []
        self.printed: deque[bytes] = deque(maxlen=_MOST_PRINTED)
        """The last lines that are no messages, such as those of a login shell."""
        self._patience, self._silence, self._alive = first, silence, alive
        self._heard = self._said = time.monotonic()
        self._lock = threading.Lock()
        self.closed = False
        """Whether the peer is gone."""

    def beat(self) -> None:
        """Send signs of life from a thread: a file system that hangs would stop them otherwise.

        A process that still starts programs has no threads, so this comes after them.
        """
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        while not self.closed:
            self._send_sign_of_life()
            time.sleep(ALIVE_SECONDS / 2)

    def _send_sign_of_life(self) -> None:
        if time.monotonic() - self._said > self._alive:
            self.send({})

    def send(self, message: Mapping[str, object]) -> None:
        """Queue a message, and send as much as the peer takes now; not from within a signal handler."""
        with self._lock:
            self._said = time.monotonic()
            self._outgoing += json.dumps(message).encode() + b"\n"
            self._flush()

    @property
    def waiting_bytes(self) -> int:
        """How much the peer has not taken yet."""
        return len(self._outgoing)

    def receive(self) -> list[Message]:
        """Return the messages that have arrived; on the way, send what is queued and a sign of life."""
        self.listen()
        arrived, self._arrived = self._arrived, []
        return arrived

    def wait_for(self, key: str, seconds: float = 0.0) -> Message | None:
        """Return the first message with this key, and keep the others; None if it does not come in time."""
        deadline = time.monotonic() + seconds
        while True:
            self.listen()
            for position, message in enumerate(self._arrived):
                if key in message:
                    return self._arrived.pop(position)
            if self.closed or time.monotonic() >= deadline:
                return None
            wait_for_any([self], min(0.5, seconds))

    def listen(self) -> None:
        """Read what has arrived, and keep it for later; send what is queued and a sign of life."""
        self._send_sign_of_life()
        with self._lock:
            self._flush()
        self._read()
        if self.silent_seconds > self._patience:
            self.closed = True
        if b"\n" in self._incoming:
            *lines, self._incoming = self._incoming.split(b"\n")
            for line in lines:
                self._sort(line)

    def _sort(self, line: bytes | bytearray) -> None:
        message = _parse_message(line)
        if message is None and line.strip():
            self.printed.append(bytes(line))
        elif message:
            self._arrived.append(message)

    @property
    def unread_bytes(self) -> int:
        """How much has arrived of a message that is not complete."""
        return len(self._incoming)

    @property
    def silent_seconds(self) -> float:
        """How long nothing was heard from the peer."""
        return time.monotonic() - self._heard

    def close(self, linger: float = 0.0) -> None:
        """Close the connection, after at most `linger` seconds in which the peer may take what is queued."""
        deadline = time.monotonic() + linger
        while self._outgoing and not self.closed and time.monotonic() < deadline:
            wait_for_any([self], 0.1)
            with self._lock:
                self._flush()
        self.closed = True
        with self._lock:
            numbers, self._open = self._open, set()
            for number in numbers:
                with contextlib.suppress(OSError):
                    os.close(number)

    def _flush(self) -> None:
        while self._outgoing and not self.closed:
            try:
                sent = os.write(self.writer, self._outgoing[:_READ_BYTES])
            except BlockingIOError:
                return
            except OSError:
                self.closed = True
                return
            del self._outgoing[:sent]

    def _read(self) -> None:
        for _ in range(_MOST_READS):
            if self.closed:
                return
            try:
                data = os.read(self.reader, _READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self.closed = not data
            self._incoming += data
            if data:
                self._heard, self._patience = time.monotonic(), self._silence


def wait_for_any(channels: Sequence[Channel], seconds: float, *files: int) -> None:
    """Wait until one of these has something to read, or takes what is queued; at most so long."""
    poll = select.poll()
    for file in files:
        poll.register(file, select.POLLIN)
    for channel in channels:
        if not channel.closed:
            poll.register(channel.reader, select.POLLIN)
            if channel.waiting_bytes and channel.writer != channel.reader:
                poll.register(channel.writer, select.POLLOUT)
            elif channel.waiting_bytes:
                poll.modify(channel.reader, select.POLLIN | select.POLLOUT)
    poll.poll(seconds * 1000)


def _parse_message(line: bytes | bytearray) -> Message | None:
    with contextlib.suppress(ValueError, RecursionError):
        message = json.loads(line)
        if isinstance(message, dict):
            return message
    return None
