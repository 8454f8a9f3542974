"""Networks of beds leave nothing behind, also if their process is killed."""

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.cluster import conftest, network
from tests.cluster.test_hosts import wait_until
from tests.running import ROOT

pytestmark = pytest.mark.hosts

KIND = ("zltest", "10.79", ("zltesthost",))
HOLD = f"""
import subprocess, sys
from contextlib import ExitStack
from tests.cluster.network import inside, network
with ExitStack() as undo:
    made = network(undo, *{KIND})
    # one that dies with this process, and one that would outlive it
    subprocess.Popen(inside(made.space("zltesthost"), "sleep", "1000"))
    left = subprocess.Popen(["ip", "netns", "exec", made.space("zltesthost"), "sleep", "1000"])
    print(made.bridge, made.space("zltesthost"), left.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def able() -> None:
    conftest.require("networks", network.missing(("ip", "setpriv")))


def hold() -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", HOLD], cwd=ROOT, stdin=pipe, stdout=pipe, text=True)


def told(holder: "subprocess.Popen[str]") -> tuple[str, str, int]:
    assert holder.stdout is not None
    bridge, space, pid = holder.stdout.readline().split()
    return bridge, space, int(pid)


def is_dead(pid: int) -> bool:
    """Killed, and maybe not reaped."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def exists(bridge: str, space: str) -> bool:
    return Path("/sys/class/net", bridge).exists() or Path("/run/netns", space).exists()


def test_what_a_killed_run_left_is_deleted_by_the_next_one() -> None:
    with hold() as holder:
        bridge, space, pid = told(holder)
        holder.kill()
    assert exists(bridge, space)
    with ExitStack() as undo:
        made = network.network(undo, *KIND)
        wait_until(lambda: is_dead(pid), 5)
        assert made.bridge == bridge or not exists(bridge, space)
    assert not exists(bridge, space)
    assert not exists(made.bridge, made.space("zltesthost"))


def test_a_network_in_use_is_left_alone() -> None:
    with hold() as first, hold() as second:
        names = {told(first)[0], told(second)[0]}
        with ExitStack() as undo:
            names.add(network.network(undo, *KIND).bridge)
            assert all(Path("/sys/class/net", name).exists() for name in names)
        for one in (first, second):
            one.communicate()
    assert len(names) == 3
