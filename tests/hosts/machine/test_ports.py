"""Ports that ranks listen on some seconds after they were chosen."""

import socket

import pytest

from zlaunch.hosts.machine import ports
from zlaunch.hosts.machine.ports import SELDOM_TAKEN, free_port


def test_a_port_is_one_that_no_connection_is_given() -> None:
    chosen = [free_port() for _ in range(20)]
    assert {*chosen} <= {*SELDOM_TAKEN}
    assert len({*chosen}) > 10


def test_a_port_that_is_in_use_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        taken = other.getsockname()[1]
        monkeypatch.setattr(ports, "SELDOM_TAKEN", [taken] * 100)
        assert free_port() != taken
