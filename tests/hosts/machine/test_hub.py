"""Whether the hub can be reached: real servers on the loopback."""

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from zlaunch.hosts.machine.hub import reach_hub


class Handler(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        is_asked_as_proxy = self.path.startswith("http")
        self.send_response(407 if is_asked_as_proxy and "locked" in self.path else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_hub_that_answers_is_reachable(server: str) -> None:
    found = reach_hub({"HF_ENDPOINT": server})
    assert (found.error, found.proxy, found.offline) == (None, None, None)


def test_without_a_server_the_error_is_that_of_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    assert reach_hub({"HF_ENDPOINT": f"http://127.0.0.1:{port}"}).error == "127.0.0.1: Connection refused"


def test_a_server_that_says_nothing_is_given_up_after_a_while() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = reach_hub({"HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"}, seconds=0.3)
    assert "timed out" in str(found.error)


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_nothing_is_asked_where_a_variable_forbids_it(name: str) -> None:
    found = reach_hub({"HF_ENDPOINT": "http://192.0.2.1", name: "1"})
    assert (found.offline, found.error) == (name, None)


def test_a_proxy_is_asked_in_place_of_the_hub_and_shown_without_its_password(server: str) -> None:
    proxy = server.replace("http://", "http://me:secret@")
    found = reach_hub({"HF_ENDPOINT": "http://hub.invalid", "http_proxy": proxy})
    assert (found.error, found.proxy) == (None, server)


def test_a_proxy_that_wants_a_password_is_an_error(server: str) -> None:
    found = reach_hub({"HF_ENDPOINT": "http://locked.invalid", "http_proxy": server})
    assert found.error == "HTTP status 407"


@pytest.mark.parametrize("exception", ["127.0.0.1", "*", "example.com,127.0.0.1"])
def test_a_host_that_needs_no_proxy_is_asked_itself(exception: str, server: str) -> None:
    found = reach_hub({"HF_ENDPOINT": server, "http_proxy": "http://proxy.invalid:1", "NO_PROXY": exception})
    assert (found.error, found.proxy) == (None, None)
