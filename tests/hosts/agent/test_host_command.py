import pytest

from zlaunch.hosts.agent.host_command import srun_command
from zlaunch.hosts.cluster.topology import Host


def test_a_step_gets_the_cpus_of_its_own_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "w[1-2]")
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "16,8")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "16")
    commands = [srun_command(Host(name, (0,)), "true") for name in ("w1", "w2")]
    assert [f"--cpus-per-task={count}" in words for count, words in zip((16, 8), commands, strict=True)] == [
        True,
        True,
    ]
