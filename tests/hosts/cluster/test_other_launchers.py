"""Hosts of schedulers that zlaunch does not obey."""

from pathlib import Path

import pytest

from zlaunch.hosts.cluster.other_launchers import says_several

NODES = "gpu1\ngpu1\ngpu2\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PBS_NODEFILE", "nodes"),
        ("PE_HOSTFILE", "nodes"),
        ("LSB_MCPU_HOSTS", "gpu1 8 gpu2 8"),
        ("LSB_HOSTS", "gpu1 gpu1 gpu2"),
        ("FLUX_JOB_NNODES", "2"),
        ("SKYPILOT_NUM_NODES", "2"),
        ("SM_HOSTS", '["algo-1", "algo-2"]'),
        ("LWS_GROUP_SIZE", "2"),
        ("BEAKER_REPLICA_COUNT", "2"),
        ("SLURM_HET_SIZE", "2"),
    ],
)
def test_several_hosts_are_counted(
    name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nodes").write_text(NODES)
    monkeypatch.chdir(tmp_path)
    assert says_several({name: value}) == f"{name} says 2 hosts"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PBS_NODEFILE", "missing"),
        ("PBS_NODEFILE", ""),
        ("LSB_MCPU_HOSTS", "gpu1 8"),
        ("LSB_HOSTS", "gpu1 gpu1"),
        ("FLUX_JOB_NNODES", "1"),
        ("SM_HOSTS", "{"),
        ("LWS_GROUP_SIZE", "many"),
    ],
)
def test_one_host_or_what_says_nothing_is_not(name: str, value: str) -> None:
    assert says_several({name: value}) is None
