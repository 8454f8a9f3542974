"""Connect processes of several hosts that prove to each other that they know a secret, without sending it.

Each end sends a nonce and answers that of the other. Nothing else counts before that. This keeps strangers
out; it encrypts nothing.
"""

import errno
import hmac
import secrets
import socket
import time
from collections.abc import Callable, Mapping

from zlaunch.hosts.agent.channel import SILENCE_SECONDS, Channel, Message, wait_for_any
from zlaunch.secrets import SECRET

OTHER_SECRET = f"its {SECRET} differs"

LEADER, MEMBER = "leader", "member"
"""The two ends: the proof of one is none of the other."""

PROOF_SECONDS = 10.0
"""How long a new connection may take to prove itself."""

SHORT_SECONDS = 1.0
"""How long it has at least, if there are more connections than this process may have."""

MOST_BYTES = 4096
"""How long the first line of a new connection may be, in bytes."""

MOST_PENDING = 400
"""A process may usually have 1024 files, and accepted connections need some, too."""

_BACKLOG = 512
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_PATIENCE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 15_000}
"""Seconds, a count, and milliseconds: a peer whose host or link is down is lost after 15 s."""


class WrongSecret(Exception):
    """The other end knows another secret; the message goes on after its name."""


class HandshakeListener:
    """Accepts connections whose other end has proved that it knows the secret."""

    def __init__(
        self,
        port: int,
        secret: str,
        silence: float = SILENCE_SECONDS,
        rejected: Callable[[Message], None] = lambda _: None,
    ) -> None:
        """Listen on a port; raise OSError.

        `silence` is how long an accepted peer may be silent, in seconds; `rejected` gets the first message of
        a peer with a wrong proof.
        """
        self._listener = socket.create_server(("", port), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._secret, self._silence, self._rejected = secret, silence, rejected
        self._pending: dict[Channel, tuple[str, float]] = {}
        """The oldest first → the nonce that it has to answer, and the time at which it connected."""
        self._is_full = False

    def close(self) -> None:
        """Stop listening, and close the pending connections."""
        self._listener.close()
        while self._pending:
            self._pending.popitem()[0].close()

    def accept(self, seconds: float = 0.0) -> list[tuple[Channel, Message]]:
        """Return each peer that proved the secret, with its first message; wait at most so long."""
        files = [self._listener.fileno()]
        if self._is_full:  # or a connection without room would wake this up again and again
            files = []
        wait_for_any([*self._pending], seconds, *files)
        accepted, now = [], time.monotonic()
        for channel, (nonce, since) in list(self._pending.items()):
            if hello := self._checked(channel, nonce):
                del self._pending[channel]
                accepted.append((channel, hello))
            elif channel.closed or channel.unread_bytes > MOST_BYTES or now - since > PROOF_SECONDS:
                self._drop(channel)
        self._take_new()
        return accepted

    def _checked(self, channel: Channel, nonce: str) -> Message | None:
        """Check the proof in the first message of a pending connection."""
        for hello in channel.receive()[:1]:
            if is_proof(hello.get("proof"), self._secret, MEMBER, nonce):
                channel.send({"proof": prove(self._secret, LEADER, hello.get("nonce"))})
                return hello
            channel.send({"proof": None})
            channel.close()
            self._rejected(hello)
        return None

    def _take_new(self) -> None:
        """Take new connections; without room, in place of the oldest pending one."""
        self._is_full = False
        while not self._is_full:
            try:
                if len(self._pending) >= MOST_PENDING:
                    raise OSError(errno.EMFILE, "")
                connection, _ = self._listener.accept()
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    return
                before = time.monotonic() - SHORT_SECONDS
                old = [channel for channel, (_, since) in self._pending.items() if since < before]
                for channel in old[:1]:
                    self._drop(channel)
                self._is_full = not old
            else:
                channel, nonce = _channel(connection, self._silence), secrets.token_hex(16)
                self._pending[channel] = (nonce, time.monotonic())
                channel.send({"nonce": nonce})

    def _drop(self, channel: Channel) -> None:
        del self._pending[channel]
        channel.close()


def connect(
    where: tuple[str, int],
    secret: str,
    hello: Mapping[str, object],
    seconds: float,
    *,
    silence: float = SILENCE_SECONDS,
    waiting: Callable[[str], None] = lambda _: None,
) -> Channel:
    """Connect to a listener, which may open later, and prove to each other that both know a secret.

    `waiting` gets the reason why a try failed. Raises OSError if no try has worked in time, WrongSecret.
    """
    deadline = time.monotonic() + seconds
    while True:
        own = secrets.token_hex(16)
        try:
            channel = _channel(socket.create_connection(where, timeout=5), silence)
            nonce = _wait_for_answer(channel, "nonce", deadline)
            channel.send({**hello, "proof": prove(secret, MEMBER, nonce), "nonce": own})
            proof = _wait_for_answer(channel, "proof", deadline)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise
            waiting(error.strerror or str(error))
        time.sleep(0.2)
    if not is_proof(proof, secret, LEADER, own):
        channel.close()
        if proof is None:
            raise WrongSecret(f"rejected this connection: {OTHER_SECRET}")
        raise WrongSecret("does not know the secret of this job")
    return channel


def _wait_for_answer(channel: Channel, key: str, deadline: float) -> object:
    message = channel.wait_for(key, deadline - time.monotonic())
    if message is not None:
        return message[key]
    why = "it does not answer"
    if channel.closed:
        why = "it closed the connection"
    channel.close()
    raise ConnectionError(why)


def _channel(connection: socket.socket, silence: float) -> Channel:
    """Let the kernel find out that a peer is gone which may be silent: it may plan for minutes."""
    connection.settimeout(None)
    if silence == float("inf"):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _PATIENCE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    number = connection.detach()
    return Channel(number, number, first=silence, silence=silence)


def prove(secret: str, role: str, nonce: object) -> str:
    """Answer the nonce of the other end, which may have sent anything."""
    if not isinstance(nonce, str):
        nonce = ""
    return hmac.new(_bytes(secret), _bytes(f"{role} {nonce}"), "sha256").hexdigest()


def is_proof(proof: object, secret: str, role: str, nonce: str) -> bool:
    """Whether the other end knows the secret; takes the same time for every answer."""
    return isinstance(proof, str) and hmac.compare_digest(_bytes(proof), _bytes(prove(secret, role, nonce)))


def _bytes(text: str) -> bytes:
    """Encode any text: JSON, and a variable that is no UTF-8, may have half a character."""
    return text.encode("utf-8", "surrogatepass")
