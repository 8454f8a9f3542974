"""Someone is told that a run has ended: by a bell, a webhook, a command."""

import contextlib
import json
import os
import shlex
import socket
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import pytest

from tests.making import ODD_NAME
from tests.recorded_run import write_run
from tests.running import zlaunch
from zlaunch.cli.notify import notify
from zlaunch.cli.ways_to_notify import check_notify
from zlaunch.errors import WrongUsage


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_run(tmp_path / ODD_NAME, 100)


@pytest.fixture
def webhook() -> Iterator[tuple[str, list[Any]]]:
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got.append({**told, "header": self.headers["Authorization"]})
            if self.path == "/odd":
                self.wfile.write(b"?\r\n")
                return
            self.send_response(404 if self.path == "/lost" else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", got
        server.shutdown()
        thread.join()


def test_a_webhook_gets_the_verdict_as_json(root: Path, webhook: tuple[str, list[Any]]) -> None:
    url, got = webhook
    notify(root, [url])
    (told,) = got
    assert (told["state"], told["exit_status"], told["verdict"]["code"]) == ("failed", 1, "script-raised")
    assert told["text"].startswith(f"{ODD_NAME} failed after 4 min 20 s: the script raised a ValueError")


@pytest.fixture
def dripping() -> Iterator[str]:
    """A webhook that answers a byte at a time, and never to the end."""
    is_over = Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not is_over.wait(0.05):
                    connection.sendall(b"x")

        thread = Thread(target=drip)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        is_over.set()
        thread.join()


def test_a_webhook_that_never_ends_its_answer_is_given_up(
    root: Path, dripping: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("zlaunch.cli.notify.SECONDS", 0.3)
    notify(root, [dripping])
    assert "failed: it took longer than" in " ".join(capsys.readouterr().err.split())


def test_a_command_that_hangs_is_ended_with_what_it_started(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("zlaunch.cli.notify.SECONDS", 0.3)
    began, file = time.monotonic(), tmp_path / "pid"
    notify(root, [f"sh -c 'sleep 30 & echo $! >{file}; wait'"])
    assert "failed: it took longer than" in " ".join(capsys.readouterr().err.split())
    assert time.monotonic() - began < 10
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(int(file.read_text()))
        while started.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() - began < 10
            time.sleep(0.01)


def test_a_command_gets_the_same_on_its_stdin(root: Path, tmp_path: Path) -> None:
    copy = f"import pathlib, sys; pathlib.Path({str(tmp_path / 'told')!r}).write_text(sys.stdin.read())"
    notify(root, [shlex.join([sys.executable, "-c", copy])])
    assert json.loads((tmp_path / "told").read_text())["state"] == "failed"


def test_a_bell_rings(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notify(root, ["bell"])
    assert capsys.readouterr().err == "\a"


def test_a_desktop_shows_the_summary(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program := tmp_path / "notify-send").write_text(f'#!/bin/sh\necho "$1|$2" > {tmp_path}/shown\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    notify(root, [check_notify("desktop")])
    assert (tmp_path / "shown").read_text().startswith(f"zlaunch: {ODD_NAME}|failed after 4 min 20 s: ")


@pytest.mark.parametrize("how", ["/lost", "/odd", "false"])
def test_a_way_that_fails_is_noted_and_the_others_are_told(
    how: str, root: Path, webhook: tuple[str, list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, got = webhook
    notify(root, [f"{url}{how}" if how.startswith("/") else how, url])
    assert "failed: " in " ".join(capsys.readouterr().err.split())
    assert got


def test_user_and_password_of_a_url_become_a_header(
    root: Path, webhook: tuple[str, list[Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    url, got = webhook
    notify(root, [url, url.replace("://", "://me%40work:p%3Aw@")])
    words = [told["header"] and b64decode(told["header"].removeprefix("Basic ")) for told in got]
    assert (words, capsys.readouterr().err) == ([None, b"me@work:p:w"], "")


@pytest.mark.parametrize(
    "how",
    [
        "",
        "no-such-program x",
        "'",
        "ftp://x",
        "mail",
        "https://x y",
        "http://127.0.0.1:abc/",
        "http://[bad",
        "http://",
    ],
)
def test_a_way_that_cannot_work_is_refused_before_the_job_starts(how: str) -> None:
    with pytest.raises(WrongUsage):
        check_notify(how)


def test_a_job_with_a_way_that_cannot_work_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    result = zlaunch("train", "train.py", "--dry-run", "--notify", "no-such-program", cwd=tmp_path)
    assert (result.status, "there is no command `no-such-program`" in result.err) == (2, True)
    assert not (tmp_path / "runs").exists()
