from pathlib import Path

import pytest

from zlaunch.errors import Unavailable
from zlaunch.hosts.agent.remote import srun_command
from zlaunch.hosts.agent.ssh import survey_hosts
from zlaunch.hosts.cluster.topology import Host
from zlaunch.hosts.machine.resources import Machine


def test_a_step_gets_the_cpus_of_its_own_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "w[1-2]")
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "16,8")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "16")
    commands = [srun_command(Host(name, (0,)), "true") for name in ("w1", "w2")]
    assert [f"--cpus-per-task={count}" in words for count, words in zip((16, 8), commands, strict=True)] == [
        True,
        True,
    ]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("exit 1", "srun cannot start a task on w2"),
        ("echo zlaunch asks; exit 255", "the connection to w2 was lost"),
    ],
)
def test_what_srun_could_not_do_says_nothing_of_ssh(
    said: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "srun").write_text(f"#!/bin/sh\n{said}\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(Unavailable, match=expected) as refused:
        survey_hosts([Host("w2", (0,))], Machine("w1", 1, 1), command=srun_command)
    assert "ssh" not in f"{refused.value.message} {refused.value.hint}"
    assert "`srun --nodes=1 --nodelist=w2 --overlap true`" in str(refused.value.hint)
