"""What is known of the way to another host, in part with a `ping` that is a fake."""

from pathlib import Path

import pytest

from zlaunch.hosts.machine.network import connection, interfaces, measure_mtu

HERE = "127.0.0.1"


@pytest.fixture
def largest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the largest size that the fake `ping` answers."""
    (tmp_path / "ping").write_text(f'#!/bin/sh\n[ "${{12}}" -le "$(cat {tmp_path}/largest)" ]\n')
    (tmp_path / "ping").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "largest"


def mtu() -> int:
    return next(one.mtu for one in interfaces() if one.address == HERE)


def test_a_packet_is_as_large_as_the_interface_allows_with_its_headers(largest: Path) -> None:
    largest.write_text(str(mtu() - 28))
    assert measure_mtu(HERE) == (mtu(), "arrives")
    largest.write_text(str(mtu() - 29))
    assert measure_mtu(HERE) == (mtu(), "lost")


def test_a_ping_that_may_not_send_is_not_the_fault_of_the_host(largest: Path) -> None:
    ping = largest.with_name("ping")
    ping.write_text("#!/bin/sh\necho 'ping: socket: Operation not permitted' >&2\nexit 2\n")
    assert measure_mtu(HERE) == (mtu(), "ping: socket: Operation not permitted")


def test_a_host_that_answers_no_ping_says_nothing_about_its_size(largest: Path) -> None:
    largest.write_text("0")
    assert measure_mtu(HERE) == (mtu(), "no answer")


LOGIN = {"SSH_CONNECTION": "10.0.0.9 55555 10.0.0.1 22"}


def test_sshd_says_both_addresses() -> None:
    assert connection(LOGIN) == ("10.0.0.9", "10.0.0.1")


def test_a_step_of_slurm_inherits_a_login_that_led_to_another_host() -> None:
    assert connection({**LOGIN, "SLURM_STEP_ID": "0"}) == (None, None)
    launched = {"SLURM_STEP_ID": "0", "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7"}
    assert connection({**LOGIN, **launched}) == ("10.0.0.7", None)


def test_without_a_connection_nothing_is_known() -> None:
    assert connection({}) == (None, None)
