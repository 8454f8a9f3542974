import socket

import pytest

from zlaunch.hosts.ports import free_port
from zlaunch.worker.node import Unreachable, check_reachable


def test_a_first_host_that_does_not_listen_yet_is_reached() -> None:
    check_reachable("127.0.0.1", free_port())


def test_a_first_host_that_listens_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        check_reachable("127.0.0.1", listener.getsockname()[1])


def test_a_first_host_without_an_address_is_named_with_its_port() -> None:
    with pytest.raises(Unreachable, match=r"cannot connect to port 29500 of the first host, w0\.invalid: "):
        check_reachable("w0.invalid", 29500)
