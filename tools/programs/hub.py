"""A model hub on this machine that serves a folder: `models/NAME`, `datasets/NAME` and `spaces/NAME`.

It answers the requests of huggingface_hub, datasets and evaluate: about repositories, trees and files.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_ABOUT = {
    "sha": COMMIT,
    "private": False,
    "gated": False,
    "tags": [],
    "downloads": 0,
    "cardData": {},
    "lastModified": "2026-01-01T00:00:00.000Z",
}
KINDS = ("models", "datasets", "spaces")


@contextmanager
def hub(folder: Path) -> Iterator[str]:
    """Serve a folder, and return the URL of the hub."""

    class Handler(_Handler):
        root = folder

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    root: Path
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        self._answer(body)

    def _answer(self, body: str = "") -> None:
        url = urlsplit(self.path)
        parts = unquote(url.path).strip("/").split("/")
        if parts[0] == "api" and len(parts) > 1 and parts[1] in KINDS:
            self._answer_api(parts[1], parts[2:], body)
        elif "resolve" in parts:
            kind = "models"
            if parts[0] in KINDS:
                kind = parts.pop(0)
            name, file = _split(parts, "resolve")
            self._send_file(self.root / kind / name / file)
        else:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})

    def _answer_api(self, kind: str, parts: list[str], body: str) -> None:
        verb = next((one for one in ("tree", "paths-info", "revision") if one in parts), "")
        name, rest = "/".join(parts), ""
        if verb:
            name, rest = _split(parts, verb)
        folder = self.root / kind / name
        if not folder.is_dir():
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif verb == "paths-info":
            paths = parse_qs(body).get("paths", [])
            if body.startswith("{"):
                paths = json.loads(body)["paths"]
            self._send_entries(folder, [folder / path for path in paths])
        elif verb == "tree":
            self._send_entries(folder, sorted((folder / rest).rglob("*")))
        else:
            real = folder.resolve().relative_to((self.root / kind).resolve())  # a link is an old name
            self._send_json({**_ABOUT, "id": real.as_posix(), "siblings": _siblings(folder)})

    def _send_entries(self, folder: Path, paths: list[Path]) -> None:
        self._send_json([_entry(path, folder) for path in paths if path.exists()])

    def _send_file(self, file: Path) -> None:
        if not file.is_file():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        data = file.read_bytes()
        tag = hashlib.sha1(data, usedforsecurity=False).hexdigest()
        self._send(200, data, {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT})

    def _send_json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        start = 0
        asked = self.headers.get("Range", "")
        if status == 200 and asked.startswith("bytes="):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, stop = int(first), len(body)
            if last:
                stop = int(last) + 1
            headers = {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"}
            status, body = 206, body[start:stop]
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def _split(parts: list[str], verb: str) -> tuple[str, str]:
    """Split NAME/verb/REVISION/PATH into name and path."""
    at = parts.index(verb)
    return "/".join(parts[:at]), "/".join(parts[at + 2 :])


def _siblings(folder: Path) -> list[dict[str, str]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [{"rfilename": path.relative_to(folder).as_posix()} for path in files]


def _entry(path: Path, folder: Path) -> dict[str, Any]:
    name = path.relative_to(folder).as_posix()
    oid = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
    if path.is_dir():
        return {"type": "directory", "path": name, "oid": oid, "size": 0}
    return {"type": "file", "path": name, "oid": oid, "size": path.stat().st_size}
