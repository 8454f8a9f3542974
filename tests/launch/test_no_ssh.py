"""What a host makes of the command that a person typed there."""

from pathlib import Path

import pytest

from zlaunch.errors import WrongUsage
from zlaunch.job.spec import GpuChoice, JobSpec
from zlaunch.launch.no_ssh import as_member


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    (tmp_path / "hostfile").write_text("w0 slots=4 addr=10.0.0.1\nw1 slots=4\n")
    return JobSpec(Path("train.py"), hostfile=tmp_path / "hostfile", exclude="w1:0")


def test_the_other_hosts_reach_the_first_one_at_the_address_that_the_hostfile_has(
    job: JobSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MASTER_PORT", raising=False)
    for number, slots in ((0, 4), (1, 3)):
        _, member = as_member(job, number)
        assert (member.number, member.count, member.slots) == (number, 2, slots)
        assert (member.address, member.port) == ("10.0.0.1", 29500)
    monkeypatch.setenv("MASTER_PORT", "6105")
    assert as_member(job, 1)[1].port == 6105


def test_a_host_takes_the_devices_that_were_chosen_for_it_alone(job: JobSpec) -> None:
    first, second = (as_member(job, number)[0] for number in (0, 1))
    assert (first.gpus, second.gpus) == (None, GpuChoice(devices=(1, 2, 3)))
    assert not first.names_hosts
    assert not second.names_hosts


def test_a_number_beyond_the_hosts_is_refused(job: JobSpec) -> None:
    with pytest.raises(WrongUsage, match="there are 2 hosts"):
        as_member(job, 2)
