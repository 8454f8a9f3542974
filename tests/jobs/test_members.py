"""A zlaunch on every node, as Kubernetes starts them: two on this machine, whose variables make them one job."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.abilities import unable
from tests.cluster.test_hosts import wait_until, working_in
from tests.cluster.test_ops import OP, fill
from tests.cluster.test_python import with_packages
from tests.cluster.ways import words
from tests.running import ZLAUNCH, zlaunch
from zlaunch.hosts.machine.ports import free_port

pytestmark = pytest.mark.job

SLEEP = "import time\nprint('ready', flush=True)\ntime.sleep(1000)\n"


@dataclass(frozen=True)
class Node:
    """A zlaunch that was started as one of two."""

    process: "subprocess.Popen[bytes]"
    out: Path
    err: Path

    def wait(self, seconds: float = 240) -> int:
        return self.process.wait(seconds)

    @property
    def said(self) -> str:
        return " ".join(self.err.read_text().split())


def node(
    cwd: Path,
    number: int,
    port: int,
    *words: object,
    within: tuple[str, ...] = (),
    is_told: bool = True,
    given: Mapping[str, str] | None = None,
) -> Node:
    """Start one of two nodes, which its environment tells so."""
    told = {"NNODES": "2", "NODE_RANK": str(number), "MASTER_ADDR": "127.0.0.1"}
    variables = {"MASTER_PORT": str(port), **(told if is_told else {}), **(given or {})}
    out, err = cwd / f"out-{number}", cwd / f"err-{number}"
    argv = [*within, *ZLAUNCH, "train", *map(str, words)]
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            argv, cwd=cwd, env={**os.environ, **variables}, stdout=stdout, stderr=stderr
        )
    return Node(process, out, err)


@contextmanager
def two(
    cwd: Path,
    *words: object,
    other: tuple[object, ...] | None = None,
    given: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
) -> Iterator[tuple[Node, Node]]:
    """Start both nodes, the second perhaps with other words or variables, and leave neither."""
    port, words_of = free_port(), (words, words if other is None else other)
    nodes = (
        node(cwd, 0, port, *words_of[0], given=given[0]),
        node(cwd, 1, port, *words_of[1], given=given[1]),
    )
    try:
        yield nodes
    finally:
        for one in nodes:
            one.process.kill()
            one.process.wait()


def test_a_node_that_has_other_arguments_is_named_and_nothing_starts(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("print('ran')\n")
    with two(tmp_path, "show.py", "--", "1", other=("show.py", "--", "2")) as nodes:
        assert [one.wait() for one in nodes] == [65, 65]
    for one in nodes:
        assert re.search(
            r"node 1 \(\S+\) and node 0 \(\S+\) differ in the arguments of the script", one.said
        ), one.said
        assert "`2` and `1`" in one.said
    assert not (tmp_path / "runs").exists()


@pytest.mark.full
def test_nodes_with_other_releases_of_packages_that_ranks_do_not_share_train(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("print('ran')\n")
    python = with_packages(tmp_path / "own")
    (packages,) = (tmp_path / "own").glob("lib/python*/site-packages")
    (packages / "typer-0.0.1.dist-info").mkdir()
    (packages / "typer-0.0.1.dist-info" / "METADATA").write_text("Name: typer\nVersion: 0.0.1\n")
    job = ("show.py", "--gpus", "1")
    with two(tmp_path, *job, other=("--python", python, *job)) as nodes:
        assert [one.wait() for one in nodes] == [0, 0], nodes[0].said


def test_an_error_of_one_node_is_an_error_of_both(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("print('ran')\n")
    with two(tmp_path, "show.py", other=("nowhere.py",)) as nodes:
        assert [one.wait() for one in nodes] == [66, 66]
    assert "node 1: " in nodes[0].said
    assert all("nowhere.py" in one.said for one in nodes)


def test_a_node_that_does_not_come_is_named(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("print('ran')\n")
    one = node(tmp_path, 0, free_port(), "show.py", "--join-timeout", "1")
    assert one.wait(15) == 69  # it does not wait for that node again, to tell it
    assert "node 1 of 2 did not connect" in one.said


def test_a_dry_run_meets_nobody_and_says_what_it_assumes(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("print('ran')\n")
    one = node(tmp_path, 0, free_port(), "show.py", "--dry-run")
    assert one.wait() == 0
    shown = one.out.read_text()
    assert "within  NNODES=2 NODE_RANK=0 MASTER_ADDR=127.0.0.1" in shown
    assert "4 ranks on 2 hosts" in " ".join(shown.split())
    assert "--nnodes=2 --node-rank=0 --nproc-per-node=2" in shown


def test_the_other_node_names_the_run_directory_that_is_written(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("print('ran')\n")
    with two(tmp_path, "show.py", "--gpus", "1") as nodes:
        assert [one.wait() for one in nodes] == [0, 0]
    (written,) = (tmp_path / "runs").iterdir()
    assert f"node 1 of 2: the run is {written} of node 0 " in nodes[1].said


def test_nodes_in_different_directories_are_told_to_use_one(tmp_path: Path) -> None:
    port = free_port()
    for number in (0, 1):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "show.py").write_text("print('ran')\n")
    nodes = [node(tmp_path / f"{number}", number, port, "show.py", "--gpus", "1") for number in (0, 1)]
    assert [one.wait() for one in nodes] == [65, 65]
    assert "start zlaunch in the same directory everywhere" in nodes[0].said


def test_a_rank_of_several_takes_no_other_gpus(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("print('ran')\n")
    rank = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "a"}
    result = zlaunch("train", "show.py", "--gpus", "2", "--dry-run", cwd=tmp_path, env=rank)
    assert result.status == 2
    assert "`--gpus` asks for several ranks, but this zlaunch is one rank: RANK=0" in result.err


@contextmanager
def asleep(cwd: Path) -> Iterator[tuple[Node, Node]]:
    (cwd / "sleep.py").write_text(SLEEP)
    with two(cwd, "sleep.py", "--gpus", "1", "--run-dir", "r") as nodes:
        logs = [cwd / "r" / "logs" / f"rank-{rank}.log" for rank in (0, 1)]
        wait_until(lambda: all(log.exists() and "ready" in log.read_text() for log in logs), 120)
        yield nodes


@pytest.mark.parametrize("number", [1, pytest.param(0, marks=pytest.mark.full)])
def test_a_signal_to_either_node_stops_both(number: int, tmp_path: Path) -> None:
    with asleep(tmp_path) as nodes:
        nodes[number].process.send_signal(signal.SIGTERM)
        assert [one.wait(30) for one in nodes] == [143, 143]
        assert all("stopped the job with SIGTERM" in one.said for one in nodes)
        wait_until(lambda: not working_in(tmp_path), 15)


def test_a_node_that_is_killed_ends_the_job_and_is_named(tmp_path: Path) -> None:
    with asleep(tmp_path) as nodes:
        nodes[1].process.kill()
        assert nodes[0].wait(60) == 1
        assert re.search(r"\S+/1 was lost: it closed the connection", nodes[0].said), nodes[0].said
        assert "then start the job again on every node" in nodes[0].said
        wait_until(lambda: not working_in(tmp_path), 15)


def test_the_other_node_ends_when_the_first_is_killed(tmp_path: Path) -> None:
    with asleep(tmp_path) as nodes:
        nodes[0].process.kill()
        assert nodes[1].wait(60) == 69
        assert "node 0" in nodes[1].said
        assert "lost node 0" in nodes[1].said
        assert f"`zlaunch runs why {tmp_path / 'r'}`" in nodes[1].said
        wait_until(lambda: not working_in(tmp_path), 15)


def test_a_run_directory_that_nodes_do_not_share_is_collected_on_the_first(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        unable("a file system of its own for a node needs root")
    (tmp_path / "show.py").write_text(
        "import os, sys\nprint('rank', os.environ['RANK'], 'is here')\nsys.exit(3 * int(os.environ['RANK']))\n"
    )
    (tmp_path / "runs").mkdir()
    words = ("show.py", "--gpus", "1", "--run-dir", "runs/r")
    own = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs "$0/runs" && exec "$@"', str(tmp_path))
    port = free_port()
    nodes = node(tmp_path, 0, port, *words), node(tmp_path, 1, port, *words, within=own)
    assert [one.wait() for one in nodes] == [3, 3], nodes[0].said
    run = tmp_path / "runs" / "r"
    assert [(run / "logs" / f"rank-{rank}.log").read_text() for rank in (0, 1)] == [
        "rank 0 is here\n",
        "rank 1 is here\n",
    ]
    assert json.loads((run / "ranks" / "rank-1.json").read_text())["returncode"] == 3
    assert all("exited with status 3 on rank 1" in one.said for one in nodes)


def test_nodes_that_a_person_starts_by_hand_join(tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    port = str(free_port())
    nodes = []
    for number in (0, 1):
        words = ("show.py", "--no-ssh", "--hosts", "127.0.0.1:1,localhost:1", "--run-dir", "r")
        nodes.append(node(tmp_path, number, int(port), *words, "--node-rank", str(number), is_told=False))
    assert [one.wait() for one in nodes] == [0, 0], nodes[0].said
    assert [(tmp_path / "r" / "logs" / f"rank-{rank}.log").read_text() for rank in (0, 1)] == [
        "rank 0\n",
        "rank 1\n",
    ]


def own_cache(folder: Path, number: int) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(folder / f"cache-{number}")}


@pytest.mark.full
def test_each_node_makes_the_ops_of_its_own_cache_ready_before_ranks_start(tmp_path: Path) -> None:
    for number in (0, 1):
        fill(tmp_path / f"cache-{number}")
    caches = own_cache(tmp_path, 0), own_cache(tmp_path, 1)
    with two(tmp_path, *words(2), "--gpus", "1", given=caches) as nodes:
        assert [one.wait() for one in nodes] == [0, 0], [one.said for one in nodes]
    for rank, one in enumerate(nodes):
        assert f"{OP} (1 of 1): loaded in" in one.said or f"{OP} (1 of 1): compiled in" in one.said, one.said
        (mark,) = (tmp_path / f"cache-{rank}").glob(f"torch_extensions/*/{OP}/zlaunch.txt")
        started = json.loads((tmp_path / "r" / "ranks" / f"rank-{rank}.json").read_text())["started"]
        assert mark.stat().st_mtime < started


def test_a_node_where_nothing_compiles_is_named_and_nothing_starts(tmp_path: Path) -> None:
    fill(tmp_path / "cache-0")
    given = own_cache(tmp_path, 0), {**own_cache(tmp_path, 1), "CXX": "/no/c++"}
    with two(tmp_path, *words(2), "--gpus", "1", given=given) as nodes:
        assert [one.wait() for one in nodes] == [69, 69], [one.said for one in nodes]
    assert re.search(rf"error: node 1 \(\S+\): {OP} cannot be compiled", nodes[0].said), nodes[0].said
    (log,) = re.findall(r"the full output is in (\S+)", nodes[1].said)
    assert "/no/c++" in Path(log).read_text()
    shutil.rmtree(Path(log).parents[1])
    assert not [*(tmp_path / "r" / "ranks").glob("rank-*")]
