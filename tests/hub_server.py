"""A model hub on this machine, which answers as the real one does."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """Where the hub is, what it was asked, and which tokens it was shown."""

    url: str
    asked: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)


@contextmanager
def hub(models: Mapping[str, Any]) -> Iterator[Hub]:
    """Serve models: their config, or the status and error code that the hub answers with."""
    state = Hub("")

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            state.asked.append(f"{self.command} {self.path}")
            state.tokens.add(self.headers.get("authorization", ""))
            name = self.path.partition("/resolve/")[0].strip("/")
            model = models.get(name, (404, "RepoNotFound"))
            status, code, body = 200, "", b""
            if isinstance(model, tuple):
                status, code = model
            else:
                body = json.dumps(model).encode()
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("ETag", f'"{abs(hash(name)):x}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
