"""What Slurm says is read as it says it."""

from pathlib import Path

import pytest

from zlaunch.errors import Unavailable
from zlaunch.hosts.cluster.slurm import allocated_hosts, cpus_on, nodes_down

SAID = """NodeName=w1 Arch=x86_64 CPUTot=1 State=MIXED ThreadsPerCore=1 Comment=(null)
NodeName=w2 Arch=x86_64 CPUTot=1 State=DOWN*+DRAIN ThreadsPerCore=1 Reason=kernel panic, again [root@2026-11-25T03:21:08] Comment=x
NodeName=w3 CPUTot=1 State=ALLOCATED+DRAIN ThreadsPerCore=1 Reason=upgrade [root@2026-11-25T03:21:08]
NodeName=w4 CPUTot=1 State=ALLOCATED+CLOUD+POWER_DOWN ThreadsPerCore=1
NodeName=w5 CPUTot=1 State=MIXED+NOT_RESPONDING ThreadsPerCore=1
"""


def test_the_hosts_of_an_allocation_are_listed_and_outside_there_are_none() -> None:
    assert [host.name for host in allocated_hosts({"SLURM_JOB_NODELIST": "w[1-2],v"})] == ["w1", "w2", "v"]
    with pytest.raises(Unavailable, match="allocation"):
        allocated_hosts({})


@pytest.mark.parametrize(
    ("per_node", "node", "count"),
    [
        ("16(x2),8", "w2", 16),
        ("16(x2),8", "w3", 8),
        ("4(x3)", "w1", 4),
        ("4", "w1", None),
        ("", "w1", None),
        ("four(x3)", "w1", None),
        ("4(x3)", "elsewhere", None),
    ],
)
def test_each_node_has_its_own_number_of_cpus(per_node: str, node: str, count: int | None) -> None:
    environ = {"SLURM_JOB_NODELIST": "w[1-3]", "SLURM_JOB_CPUS_PER_NODE": per_node}
    assert cpus_on(node, environ) == count


def test_outside_of_a_job_no_cpus_are_known() -> None:
    assert cpus_on("w1", {}) is None


def answering(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (folder / "said").write_text(text)
    (folder / "scontrol").write_text(f"#!/bin/sh\ncat {folder}/said\n")
    (folder / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_node_that_is_down_is_found_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(tmp_path, monkeypatch, SAID)
    assert nodes_down(["w1", "w2", "w3", "w4", "w5"]) == {"w2": "DOWN*+DRAIN, kernel panic, again"}


def test_a_slurm_that_says_nothing_names_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(tmp_path, monkeypatch, "")
    assert nodes_down(["w1"]) == {}
