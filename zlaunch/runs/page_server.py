"""Serve pages to the browsers of this machine alone: on the loopback interface, below a secret token.

Other users of the machine do not know the token. Requests of other sites are refused: a browser sends the
name under which it found an address, which is another one if a site's name was rebound to this machine.
"""

import hmac
import secrets
import socketserver
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

LOOPBACK: Final = "127.0.0.1"
_NAMES: Final = (LOOPBACK, "localhost")
_HEADERS: Final[Mapping[str, str]] = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Answer(NamedTuple):
    """Text for a browser."""

    text: str
    kind: str = "text/html"


Content = Callable[[Sequence[str], Mapping[str, str]], Answer | None]
"""Makes the answer to the parts of a path and to a query; None if there is no such page."""


class PageServer(ThreadingHTTPServer):
    """Answers requests that know the token and come through the loopback interface."""

    daemon_threads = True

    def __init__(self, port: int, content: Content) -> None:
        """Listen on a port, or on a free one for 0; raise OSError if that fails."""
        self.token = secrets.token_urlsafe(24)
        self.content = content
        super().__init__((LOOPBACK, port), _Handler)
        self.timeout = 0.5

    def server_bind(self) -> None:
        """Bind without looking up the name of this machine, which may take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, self.server_address[1]

    @property
    def url(self) -> str:
        """The address of the first page."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a browser that left before its answer."""


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = 30
    server_version, sys_version = "zlaunch", ""

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        token, *parts = [unquote(part) for part in address.path.lstrip("/").split("/")]
        if not self._is_local() or not hmac.compare_digest(token.encode(), self.server.token.encode()):
            self._send(HTTPStatus.FORBIDDEN, Answer("this address is not known here\n", "text/plain"))
            return
        answer = self.server.content(parts, dict(parse_qsl(address.query)))
        if answer is None:
            self._send(HTTPStatus.NOT_FOUND, Answer("there is no such page\n", "text/plain"))
        else:
            self._send(HTTPStatus.OK, answer)

    do_HEAD = do_GET  # noqa: N815 - the names of the methods of HTTP

    def _refuse(self) -> None:
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, Answer("pages can only be read\n", "text/plain"))

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815

    def _is_local(self) -> bool:
        """Whether the browser looked for this machine by its own name; the port may be that of a tunnel."""
        hosts = self.headers.get_all("Host") or []
        return len(hosts) == 1 and hosts[0].partition(":")[0].lower() in _NAMES

    def _send(self, status: HTTPStatus, answer: Answer) -> None:
        body = answer.text.encode("utf-8", "replace")
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Type", f"{answer.kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Print nothing: each page asks every two seconds."""
