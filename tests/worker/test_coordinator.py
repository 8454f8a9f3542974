"""The program that starts the hosts of a job, with errors of the system at its start."""

import json
import os
import shlex
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.running import Result, run
from zlaunch.diagnosis.collect import LauncherEnd, collect_evidence
from zlaunch.diagnosis.diagnose import diagnose
from zlaunch.hosts.machine.ports import free_port
from zlaunch.process import ours
from zlaunch.rundir.run_files import RunFiles
from zlaunch.worker.node import NUMBER, TOKEN


def coordinate(folder: Path, starts: list[list[str]], argv: tuple[str, ...] = (), **members: Any) -> Result:
    """Run the coordinator for hosts that are started so, each with a launcher."""
    for name in ("logs", "ranks"):
        (folder / name).mkdir()
    nodes = [
        {"host": f"w{node}", "start": start, "argv": argv, "environment": {}, "ranks": [node]}
        for node, start in enumerate(starts)
    ]
    slots = [{"rank": node, "host": f"w{node}"} for node, _ in enumerate(starts)]
    job = {"nodes": nodes, "ranks": slots, "control_port": 0, "environment": {}, "working_directory": "/"}
    (folder / "job.json").write_text(json.dumps({**job, **members}))
    return run(
        *ours("zlaunch.worker.coordinator", str(folder)), cwd=folder, env={**os.environ, TOKEN: "secret"}
    )


def test_a_program_that_is_missing_is_the_verdict_of_its_host(tmp_path: Path) -> None:
    result = coordinate(tmp_path, [["/nowhere/srun"], ["/nowhere/srun"]])
    assert (result.status, "Traceback" in result.out + result.err) == (1, False)
    verdict = diagnose(collect_evidence(RunFiles(tmp_path), LauncherEnd(result.status)))
    assert verdict.cause == (
        "w0 could not start its ranks: `srun` cannot be started: No such file or directory"
    )


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        result = coordinate(tmp_path, [[], []], control_port=port)
    words = f"zlaunch cannot listen for the other hosts on port {port}: Address already in use; start again\n"
    assert (result.status, result.out, result.err) == (1, words, "")


def node(port: int, number: int, token: str) -> "subprocess.Popen[str]":
    argv = ours("zlaunch.worker.node", "127.0.0.1", str(port))
    environment = {**os.environ, TOKEN: token, NUMBER: str(number)}
    return subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True)


def test_hosts_that_connect_are_let_in_and_one_with_another_secret_is_not(tmp_path: Path) -> None:
    port = free_port()
    with ThreadPoolExecutor() as pool:
        result = pool.submit(coordinate, tmp_path, [[], []], ("true",), control_port=port)
        stranger = node(port, 1, "wrong")
        why = "rejected this connection: its ZLAUNCH_SECRET differs"
        said = f"error: zlaunch.worker.node cannot connect to 127.0.0.1 port {port}: {why}\n"
        assert (stranger.communicate(timeout=60)[1], stranger.returncode) == (said, 1)
        nodes = [node(port, number, "secret") for number in (0, 1)]
        assert [one.communicate(timeout=60)[1] for one in nodes] == ["", ""]
        assert [one.returncode for one in nodes] == [0, 0]
        assert (result.result().status, result.result().out) == (0, "")


SLURMS_STEP = """
for _ in $(seq 100); do
    kill -USR1 $PPID
    sleep 0.1
    test -e ask-save && exit
done
"""
"""A launcher while Slurm asks the step of its host to save, which it does not send to zlaunch itself."""


def test_a_signal_to_save_that_one_host_gets_alone_asks_the_whole_job(tmp_path: Path) -> None:
    argv = ("sh", "-c", f"cd {shlex.quote(str(tmp_path))}\n{SLURMS_STEP}")
    result = coordinate(tmp_path, [ours("zlaunch.worker.node")], argv)
    assert (result.status, (tmp_path / "ask-save").read_text()) == (0, "SIGUSR1")
