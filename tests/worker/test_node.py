import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.abilities import need_root
from tests.running import ROOT
from zlaunch.hosts.agent.channel import Channel
from zlaunch.hosts.machine.ports import free_port
from zlaunch.rundir.record import OrderRecord
from zlaunch.secrets import SECRET
from zlaunch.worker.node import NUMBER, TOKEN, _Node, check_reachable

SILENT = ("127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5")
REACH = """
import json, sys, time
from zlaunch.worker import node
node.REACH_SECONDS, began = 0.4, time.monotonic()
try:
    node.check_reachable("w0", int(sys.argv[1]))
except node.Unreachable as error:
    print(json.dumps([error.strerror, time.monotonic() - began]))
else:
    print(json.dumps(["", time.monotonic() - began]))
"""


@pytest.fixture
def port() -> Iterator[int]:
    """A port where some addresses drop what is sent to them: more connect than anything accepts."""
    with ExitStack() as undo:
        port = 0
        for address in SILENT:
            listener = undo.enter_context(socket.socket())
            listener.bind((address, port))
            listener.listen(0)
            port = listener.getsockname()[1]
            for _ in range(3):
                waiting = undo.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex((address, port))
        yield port


def reach(folder: Path, addresses: Sequence[str], port: int) -> tuple[str, float]:
    """Check a host that has these addresses; return the error and how long it took."""
    need_root("give a name several addresses")
    (hosts := folder / "hosts").write_text("".join(f"{address} w0\n" for address in addresses))
    own = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(hosts))
    argv = [*own, sys.executable, "-c", REACH, str(port)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    why, seconds = json.loads(done.stdout)
    return why, seconds


def test_a_first_host_that_does_not_listen_yet_is_reached() -> None:
    check_reachable("127.0.0.1", free_port())


def test_a_first_host_that_listens_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        check_reachable("127.0.0.1", listener.getsockname()[1])


def test_a_name_without_an_address_is_left_to_torchrun() -> None:
    check_reachable("w0.invalid", 29500)


def test_a_first_host_that_drops_all_is_named_in_time_however_many_addresses_it_has(
    port: int, tmp_path: Path
) -> None:
    why, seconds = reach(tmp_path, SILENT, port)
    assert why == f"it cannot connect to port {port} of the first host, w0: timed out"
    assert seconds < 1.5


def test_a_first_host_is_reached_at_any_of_its_addresses(port: int, tmp_path: Path) -> None:
    why, _ = reach(tmp_path, [*SILENT, "127.0.0.1"], port)
    assert why == ""


@pytest.mark.parametrize(("is_shared", "mode"), [(False, 0o700), (True, 0o755)])
def test_a_run_directory_is_as_private_on_every_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_shared: bool, mode: int
) -> None:
    monkeypatch.chdir(tmp_path)
    order: OrderRecord = {
        "node": 1,
        "run_directory": str(tmp_path / "run"),
        "working_directory": str(tmp_path),
        "files": {"job.json": "{}"},
        "shared": is_shared,
    }
    _Node(Channel(*os.pipe()), order).prepare()
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == mode
    assert (tmp_path / "run" / "job.json").read_text() == "{}"


def test_a_launcher_gets_the_variables_of_its_order_and_no_secret_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (NUMBER, SECRET, TOKEN):
        monkeypatch.setenv(name, "aB3dE5gH7jK9m")
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    order: OrderRecord = {
        "run_directory": str(tmp_path),
        "argv": [sys.executable, "-c", show],
        "environment": {"NCCL_DEBUG": "INFO"},
        "shielded": False,
        "ranks": [],
    }
    program = """
import json, os, sys
from zlaunch.hosts.agent.channel import Channel
from zlaunch.worker.node import _Node
with open("log", "wb") as log:
    sys.exit(_Node(Channel(*os.pipe()), json.loads(sys.argv[1])).run(log))
"""
    own = [sys.executable, "-c", program, json.dumps(order)]
    subprocess.run(own, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    got = json.loads((tmp_path / "log").read_text())
    assert (got["NCCL_DEBUG"], {NUMBER, SECRET, TOKEN} & got.keys()) == ("INFO", set())
