from pathlib import Path

import pytest

from zlaunch.hosts.slurm_nodes import nodes_down

SAID = """NodeName=w1 Arch=x86_64 CPUTot=1 State=MIXED ThreadsPerCore=1 Comment=(null)
NodeName=w2 Arch=x86_64 CPUTot=1 State=DOWN*+DRAIN ThreadsPerCore=1 Reason=kernel panic, again [root@2026-11-25T03:21:08] Comment=x
NodeName=w3 CPUTot=1 State=ALLOCATED+DRAIN ThreadsPerCore=1 Reason=upgrade [root@2026-11-25T03:21:08]
"""


def answering(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (folder / "said").write_text(text)
    (folder / "scontrol").write_text(f"#!/bin/sh\ncat {folder}/said\n")
    (folder / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_node_that_is_down_is_found_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(tmp_path, monkeypatch, SAID)
    assert nodes_down(["w1", "w2", "w3"]) == {"w2": "DOWN*+DRAIN, kernel panic, again"}


def test_a_slurm_that_says_nothing_names_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(tmp_path, monkeypatch, "")
    assert nodes_down(["w1"]) == {}
