"""Members that meet on a loopback port, among strangers that connect, too."""

import json
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.running import ROOT
from zlaunch.errors import Unavailable
from zlaunch.hosts.cluster_environment import Member
from zlaunch.hosts.ports import free_port
from zlaunch.launch.members import Meeting, MemberFailed
from zlaunch.worker.proof import MEMBER, prove

FULL = """
import resource, sys, time
from zlaunch.hosts.cluster_environment import Member
from zlaunch.launch.members import Meeting
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
began = time.process_time()
Meeting(Member(0, 2, "127.0.0.1", int(sys.argv[1]), "a test"), 20.0, print, "s3cret")._gather(20.0)
print(time.process_time() - began)
"""


class Met(threading.Thread):
    """Member 0 of two, which waits for the other one."""

    def __init__(self, port: int, secret: str, seconds: float = 20.0) -> None:
        super().__init__(daemon=True)
        self.notes: list[str] = []
        self.error: Exception | None = None
        self.meeting = Meeting(Member(0, 2, "127.0.0.1", port, "a test"), seconds, self.notes.append, secret)
        self._seconds = seconds
        self.start()

    def run(self) -> None:
        try:
            self.meeting._gather(self._seconds)
        except (Unavailable, MemberFailed) as error:
            self.error = error


def other(port: int, secret: str) -> Meeting:
    return Meeting(Member(1, 2, "127.0.0.1", port, "a test"), 10.0, lambda _: None, secret)


def connected(port: int) -> socket.socket:
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=5)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.mark.parametrize("secret", ["", "s3cret"])
def test_members_with_the_same_secret_meet(secret: str, port: int) -> None:
    leader, member = Met(port, secret), other(port, secret)
    member._connect(10.0)
    leader.join(10)
    assert (leader.is_alive(), leader.error) == (False, None)


def test_a_thousand_silent_strangers_keep_no_member_out(port: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    leader = Met(port, "s3cret")
    strangers = [connected(port) for _ in range(600)]  # two files each
    other(port, "s3cret")._connect(10.0)
    leader.join(10)
    assert (leader.is_alive(), leader.error) == (False, None)
    for stranger in strangers:
        stranger.settimeout(5)
        while stranger.recv(4096):  # until it is closed
            pass
        stranger.close()


@contextmanager
def full(port: int, first: Callable[[], object]) -> Iterator["subprocess.Popen[str]"]:
    """Start a leader that may have 40 files; the first to connect is followed by 60 silent strangers."""
    argv = (sys.executable, "-c", FULL, str(port))
    with (
        subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as leader,
        ExitStack() as undo,
    ):
        undo.callback(leader.kill)
        first()
        for _ in range(60):
            undo.enter_context(connected(port))
        yield leader


def test_a_leader_that_may_have_no_more_files_makes_room_for_a_member_and_does_not_spin(port: int) -> None:
    with full(port, lambda: None) as leader:
        other(port, "s3cret")._connect(10.0)
        cpu_seconds, _ = leader.communicate(timeout=5)
    assert float(cpu_seconds) < 0.5


def test_a_member_that_takes_a_moment_is_not_dropped_to_make_room(port: int) -> None:
    members: list[socket.socket] = []
    with full(port, lambda: members.append(connected(port))), members[0] as member:
        lines = member.makefile("rw")
        nonce = json.loads(lines.readline())["nonce"]
        time.sleep(0.4)
        proof = prove("s3cret", MEMBER, nonce)
        lines.write(json.dumps({"member": 1, "count": 2, "proof": proof, "nonce": "1"}) + "\n")
        lines.flush()
        assert "proof" in json.loads(lines.readline())


@pytest.mark.parametrize(
    "say",
    [
        lambda stranger: stranger.sendall(b"x" * 100_000),
        lambda stranger: stranger.sendall(b'\xff{}[]\n{"member": 1, "count": 2}\n'),
        lambda stranger: stranger.sendall(b'{"member": 1, "count": 3, "proof": null, "nonce": [1]}\n'),
        lambda stranger: stranger.sendall(b'{"a":' + b"[" * 3000 + b"\n"),
        lambda stranger: stranger.sendall(b'{"member": 1, "count": 2, "proof": "\\ud800", "nonce": "1"}\n'),
        lambda stranger: stranger.sendall(
            b'{"member": 1, "count": 2, "proof": ' + b"[" * 900 + b"]" * 900 + b"}\n"
        ),
        lambda stranger: stranger.sendall(b'{"member": true, "count": 2}\n'),
        lambda stranger: stranger.close(),
    ],
)
def test_a_stranger_that_says_anything_is_not_a_member(
    say: Callable[[socket.socket], None], port: int
) -> None:
    leader = Met(port, "s3cret")
    say(connected(port))
    time.sleep(0.3)
    other(port, "s3cret")._connect(10.0)
    leader.join(10)
    assert (leader.is_alive(), leader.error) == (False, None)


def test_a_member_with_another_secret_is_told_so_and_the_leader_waits_on(port: int) -> None:
    leader = Met(port, "s3cret", seconds=2.0)
    with pytest.raises(MemberFailed, match="ZLAUNCH_SECRET is not that of the others"):
        other(port, "wrong")._connect(10.0)
    leader.join(10)
    assert "node 1 of 2 did not connect" in str(leader.error)
    assert "refused a connection that says to be node 1" in leader.notes[0]


def test_a_member_obeys_no_leader_that_does_not_know_the_secret(port: int) -> None:
    listener = socket.create_server(("127.0.0.1", port))
    member, errors = other(port, "s3cret"), []

    def connect() -> None:
        try:
            member._connect(10.0)
        except MemberFailed as error:
            errors.append(str(error))

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    stranger, _ = listener.accept()
    stranger.sendall(b'{"nonce": "1"}\n{"proof": "0"}\n{"start": {"port": 1, "token": ""}}\n')
    thread.join(10)
    assert errors == ["node 0 does not know the secret of this job"]
    stranger.close()
    listener.close()
