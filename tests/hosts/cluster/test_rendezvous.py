"""Members that meet on a loopback port."""

import socket
import threading

import pytest

from zlaunch.errors import Unavailable
from zlaunch.hosts.agent.handshake import connect
from zlaunch.hosts.cluster.rendezvous import MemberFailed, Rendezvous
from zlaunch.hosts.cluster.started_by import Member
from zlaunch.hosts.machine.ports import free_port


class Met(threading.Thread):
    """Member 0, which waits for the others."""

    def __init__(self, port: int, secret: str, seconds: float = 20.0, count: int = 2) -> None:
        super().__init__(daemon=True)
        self.notes: list[str] = []
        self.error: Exception | None = None
        self.rendezvous = Rendezvous(
            Member(0, count, "127.0.0.1", port, "a test"), seconds, self.notes.append, secret
        )
        self._seconds = seconds
        self.start()

    def run(self) -> None:
        try:
            self.rendezvous._gather(self._seconds)
        except (Unavailable, MemberFailed) as error:
            self.error = error


def other(port: int, secret: str, number: int = 1, count: int = 2) -> Rendezvous:
    return Rendezvous(Member(number, count, "127.0.0.1", port, "a test"), 10.0, lambda _: None, secret)


def test_what_differs_in_a_ds_config_is_named_by_its_key(port: int) -> None:
    leader, member = Met(port, ""), other(port, "")
    member._connect(10.0)
    leader.join(10)
    config = {"train_batch_size": 16, "zero_optimization": {"stage": 1}}
    member.tell({"parts": {"ds_config": {**config, "zero_optimization": {"stage": 2}}}})
    with pytest.raises(MemberFailed) as failed:
        leader.rendezvous.compare_plans({"ds_config": config})
    assert "differ in the ds_config at `zero_optimization.stage`: `2` and `1`" in failed.value.message


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.mark.parametrize("secret", ["", "s3cret"])
def test_members_with_the_same_secret_meet(secret: str, port: int) -> None:
    leader, member = Met(port, secret), other(port, secret)
    member._connect(10.0)
    leader.join(10)
    assert (leader.is_alive(), leader.error) == (False, None)


@pytest.mark.parametrize("is_ready", [False, True])
def test_a_member_that_is_lost_before_it_is_ready_ends_the_wait(is_ready: bool, port: int) -> None:
    leader, member = Met(port, ""), other(port, "")
    member._connect(10.0)
    leader.join(10)
    if is_ready:
        member.report_ready()
    member.close()
    lost: list[str | None] = []
    waiting = threading.Thread(target=lambda: lost.append(why_not_ready(leader.rendezvous)), daemon=True)
    waiting.start()
    waiting.join(10)
    assert lost == [None if is_ready else "lost node 1"]


def why_not_ready(rendezvous: Rendezvous) -> str | None:
    try:
        rendezvous.wait_until_ready(lambda _, __: None)
    except MemberFailed as failed:
        return failed.message
    return None


def test_a_member_that_starts_again_while_the_others_meet_is_no_second_one(port: int) -> None:
    leader = Met(port, "", count=3)
    for number in (1, 1, 2):
        member = other(port, "", number, count=3)
        member._connect(10.0)
        if number == 1:
            member.close()
    leader.join(10)
    assert (leader.is_alive(), leader.error) == (False, None)


def test_two_members_with_one_number_are_reported(port: int) -> None:
    leader, members = Met(port, "", count=3), [other(port, "", 1, count=3) for _ in range(2)]
    for member in members:
        member._connect(10.0)
    leader.join(10)
    assert str(leader.error) == "two zlaunch processes are node 1 of 3"
    told = []
    for member in members:
        with pytest.raises(MemberFailed) as failed:
            member._hear(0, "everyone", 2.0)
        told.append(failed.value.message)
    assert "two zlaunch processes are node 1 of 3" in told


def test_a_member_that_expects_more_of_them_is_reported_whatever_its_number(port: int) -> None:
    leader = Met(port, "")
    other(port, "", 5, count=8)._connect(10.0)
    leader.join(10)
    assert "node 5 (" in str(leader.error)
    assert "was started as one of 8 nodes, and node 0 as one of 2" in str(leader.error)


def test_a_member_with_another_zlaunch_is_refused(port: int) -> None:
    leader = Met(port, "")
    hello = {"member": 1, "count": 2, "host": "b", "code": "0.1.0, code 00000000"}
    connect(("127.0.0.1", port), "", hello, 10.0)
    leader.join(10)
    assert str(leader.error).startswith(
        "node 1 (b) has another zlaunch (0.1.0, code 00000000) than this host"
    )


def test_a_member_with_another_secret_is_told_so_and_the_leader_waits_on(port: int) -> None:
    leader = Met(port, "s3cret", seconds=2.0)
    with pytest.raises(MemberFailed, match="node 0 rejected this connection: its ZLAUNCH_SECRET differs"):
        other(port, "wrong")._connect(10.0)
    leader.join(10)
    assert "node 1 of 2 did not connect" in str(leader.error)
    assert leader.notes == ["rejected a connection that claims to be node 1: its ZLAUNCH_SECRET differs"]


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
