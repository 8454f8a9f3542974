"""The program that starts the hosts of a job, with errors of the system at its start."""

import json
import os
import socket
from pathlib import Path
from typing import Any

from tests.running import Result, run
from zlaunch.diagnosis.collect import collect_evidence
from zlaunch.diagnosis.diagnose import diagnose
from zlaunch.process import ours
from zlaunch.rundir.layout import RunDir
from zlaunch.worker.node import TOKEN


def coordinate(folder: Path, starts: list[list[str]], **members: Any) -> Result:
    """Run the coordinator for hosts that are started so."""
    for name in ("logs", "ranks"):
        (folder / name).mkdir()
    nodes = [
        {"host": f"w{node}", "start": start, "argv": [], "environment": {}, "ranks": [node]}
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
    verdict = diagnose(collect_evidence(RunDir(tmp_path), result.status, None))
    assert verdict.cause == (
        "w0 could not start its ranks: `srun` cannot be started: No such file or directory"
    )


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        result = coordinate(tmp_path, [[], []], control_port=port)
    words = f"zlaunch cannot listen for the other hosts on port {port}: Address already in use; start again\n"
    assert (result.status, result.out, result.err) == (1, words, "")
