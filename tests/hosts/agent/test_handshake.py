"""A listener on a loopback port, and strangers that connect, too."""

import json
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from tests.running import ROOT, Program
from zlaunch.hosts.agent import handshake
from zlaunch.hosts.agent.channel import Channel, Message
from zlaunch.hosts.agent.handshake import MEMBER, HandshakeListener, WrongSecret, connect, prove
from zlaunch.hosts.machine.ports import free_port

FULL = """
import resource, sys, time
from zlaunch.hosts.agent.handshake import HandshakeListener
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
listener, began = HandshakeListener(int(sys.argv[1]), "s3cret"), time.process_time()
print("open", flush=True)
while not listener.accept(0.5):
    pass
print(time.process_time() - began)
"""


class Open(threading.Thread):
    """A listener that is open until one has proved itself."""

    def __init__(self, port: int, say: Message | None = None) -> None:
        super().__init__(daemon=True)
        self.rejected: list[Message] = []
        self.found: list[tuple[Channel, Message]] = []
        self._listener, self._say = HandshakeListener(port, "s3cret", rejected=self.rejected.append), say
        self.start()

    def run(self) -> None:
        with closing(self._listener):
            while not self.found:
                self.found = self._listener.accept(0.5)
                for channel, _ in self.found if self._say else []:
                    channel.send(self._say or {})


def member(port: int, secret: str = "s3cret", seconds: float = 10.0) -> Channel:
    return connect(("127.0.0.1", port), secret, {"name": "one"}, seconds)


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def nonce_of(stranger: socket.socket) -> str:
    return str(json.loads(stranger.makefile().readline())["nonce"])


def is_closed(stranger: socket.socket) -> bool:
    with stranger:
        stranger.settimeout(5)
        try:
            while stranger.recv(4096):
                pass
        except ConnectionResetError:
            pass
        except TimeoutError:
            return False
        return True


@pytest.fixture
def port() -> int:
    return free_port()


def test_who_knows_the_secret_is_let_in_with_what_it_says(port: int) -> None:
    opened, channel = Open(port), member(port)
    opened.join(10)
    ((here, hello),) = opened.found
    assert hello["name"] == "one"
    channel.send({"more": 1})
    assert here.wait_for("more", 5) == {"more": 1}


def test_what_is_said_right_after_the_proof_is_not_lost(port: int) -> None:
    Open(port, say={"order": 1})
    assert member(port).wait_for("order", 5) == {"order": 1}


def test_a_door_may_open_later(port: int) -> None:
    timer = threading.Timer(0.3, Open, (port,))
    timer.start()
    assert not member(port).closed


def test_who_knocks_in_vain_is_told_why(port: int) -> None:
    with pytest.raises(ConnectionRefusedError):
        member(port, seconds=0.1)


def test_who_is_not_let_in_knocks_again(port: int) -> None:
    listener = socket.create_server(("127.0.0.1", port))

    def refuse_once() -> None:
        listener.accept()[0].close()
        listener.close()
        Open(port)

    threading.Thread(target=refuse_once, daemon=True).start()
    assert not member(port).closed


def test_another_secret_is_rejected_and_both_ends_hear_of_it(port: int) -> None:
    opened = Open(port)
    with pytest.raises(WrongSecret, match="rejected this connection: its ZLAUNCH_SECRET differs"):
        member(port, "wrong")
    member(port)
    opened.join(10)
    assert [(hello["name"], len(opened.found)) for hello in opened.rejected] == [("one", 1)]


@pytest.mark.parametrize("secret", ["", "s3cret", "\udcff"])
def test_the_secret_is_never_sent_and_its_proof_is_none_of_the_other_end(secret: str, port: int) -> None:
    said: list[str] = []
    with socket.create_server(("127.0.0.1", port)) as listener:

        def reflect() -> None:
            impostor, _ = listener.accept()
            with impostor, impostor.makefile("rw") as lines:
                lines.write('{"nonce": "1"}\n')
                lines.flush()
                said.append(lines.readline())
                lines.write(json.dumps({"proof": json.loads(said[0])["proof"]}) + '\n{"order": 1}\n')

        thread = threading.Thread(target=reflect, daemon=True)
        thread.start()
        with pytest.raises(WrongSecret, match="does not know the secret"):
            member(port, secret)
        thread.join(10)
    assert not secret or secret not in json.loads(said[0]).values()
    assert "s3cret" not in said[0]


def test_the_proof_of_one_connection_is_none_for_another(port: int) -> None:
    opened = Open(port)
    with connected(port) as first, connected(port) as second:
        proof = prove("s3cret", MEMBER, nonce_of(first))
        second.sendall(json.dumps({"proof": proof, "nonce": "1"}).encode() + b"\n")
        assert is_closed(second)
    assert opened.found == []
    member(port)


@pytest.mark.parametrize(
    "say",
    [
        b"x" * 100_000,
        b'\xff{}[]\n{"name": "one"}\n',
        b'{"proof": null, "nonce": [1]}\n',
        b'{"proof": "\\ud800", "nonce": "1"}\n',
        b'{"proof": ' + b"[" * 900 + b"]" * 900 + b"}\n",
        b'{"a":' + b"[" * 3000 + b"\n{}\n" + b"y" * 5000,
    ],
)
def test_a_stranger_that_says_anything_is_closed_and_keeps_no_member_out(say: bytes, port: int) -> None:
    opened = Open(port)
    stranger = connected(port)
    stranger.sendall(say)
    assert is_closed(stranger)
    member(port)
    opened.join(10)
    assert not opened.is_alive()


def test_a_stranger_that_only_gives_signs_of_life_is_closed(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "PROOF_SECONDS", 0.5)
    Open(port)
    stranger = connected(port)
    for _ in range(4):
        stranger.sendall(b"{}\n")
        time.sleep(0.1)
    assert is_closed(stranger)


def test_hundreds_of_silent_strangers_keep_no_member_out(port: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    opened = Open(port)
    strangers = [connected(port) for _ in range(600)]  # two files each
    member(port)
    opened.join(10)
    assert not opened.is_alive()
    assert all(map(is_closed, strangers))


@contextmanager
def full(port: int, first: Callable[[], object]) -> Iterator["subprocess.Popen[str]"]:
    """Start a listener that may have 40 files; the first to connect is followed by 60 silent strangers."""
    argv = (sys.executable, "-c", FULL, str(port))
    with Program(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program, ExitStack() as undo:
        undo.callback(program.kill)
        assert program.stdout is not None
        assert program.stdout.readline() == "open\n"
        first()
        for _ in range(60):
            undo.enter_context(connected(port))
        yield program


def test_a_door_that_may_have_no_more_files_makes_room_for_a_member_and_does_not_spin(port: int) -> None:
    with full(port, lambda: None) as program:
        member(port)
        cpu_seconds, _ = program.communicate(timeout=60)
    assert float(cpu_seconds) < 0.5


def test_a_member_that_takes_a_moment_is_not_dropped_to_make_room(port: int) -> None:
    members: list[socket.socket] = []
    with full(port, lambda: members.append(connected(port))), members[0] as slow:
        nonce = nonce_of(slow)
        time.sleep(0.4)
        slow.sendall(json.dumps({"proof": prove("s3cret", MEMBER, nonce), "nonce": "1"}).encode() + b"\n")
        assert "proof" in json.loads(slow.makefile().readline())
