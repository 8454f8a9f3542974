from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.making import CPU_MACHINE, gpu, machine
from zlaunch.errors import Place, Unavailable, WrongUsage
from zlaunch.hosts.cluster.placement import (
    assign_ranks,
    choose_slots,
    most_slots,
    refuse_contradictions,
)
from zlaunch.hosts.cluster.topology import Host, HostLine, Reach, Topology
from zlaunch.hosts.machine.resources import Machine
from zlaunch.job.spec import DeviceChoice, GpuChoice, JobSpec

FOUR_GPUS = machine(gpu(0), gpu(1), gpu(2), gpu(3))
SOME_VISIBLE = machine(gpu(2), gpu(0), hidden=(1, 3))
HOSTS = [Host("w0", (0, 1)), Host("w1", (0,))]


def _place(on: Machine, hosts: list[Host] | None = None, **asked: Any) -> Topology:
    choice = DeviceChoice(**asked)
    if hosts is None:
        return assign_ranks(on, choice)
    return choose_slots([HostLine(host, Place("hosts", 1, 1)) for host in hosts], choice)


def _devices(on: Machine, **asked: Any) -> tuple[int, ...]:
    (host,) = _place(on, **asked).hosts
    return host.devices


@pytest.mark.parametrize(
    ("asked", "devices"),
    [
        ({}, (0, 1, 2, 3)),
        ({"gpus": GpuChoice(count=2)}, (0, 1)),
        ({"gpus": GpuChoice(devices=(3, 1))}, (1, 3)),
        ({"include": "localhost:1,2"}, (1, 2)),
        ({"exclude": "localhost:0"}, (1, 2, 3)),
    ],
)
def test_a_job_gets_the_gpus_it_asks_for(asked: dict[str, Any], devices: tuple[int, ...]) -> None:
    assert _devices(FOUR_GPUS, **asked) == devices


def test_a_job_that_asks_for_nothing_gets_all_visible_gpus_in_their_order() -> None:
    assert _devices(SOME_VISIBLE) == (0, 2)


def test_a_count_takes_the_first_visible_gpus() -> None:
    assert _devices(SOME_VISIBLE, gpus=GpuChoice(count=1)) == (2,)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (GpuChoice(count=3), r"cannot use 3 GPUs: 2 are visible \(2, 0\)"),
        (GpuChoice(devices=(1,)), "GPU 1 is hidden by CUDA_VISIBLE_DEVICES"),
        (GpuChoice(devices=(0, 9)), "there is no GPU 9; there are 2, 0"),
    ],
)
def test_a_gpu_that_is_not_there_is_unavailable(choice: GpuChoice, message: str) -> None:
    with pytest.raises(Unavailable, match=message):
        _place(SOME_VISIBLE, gpus=choice)


def test_a_machine_without_gpus_runs_two_ranks() -> None:
    assert _devices(CPU_MACHINE) == (0, 1)


def test_a_machine_without_gpus_runs_as_many_ranks_as_asked() -> None:
    assert _devices(CPU_MACHINE, gpus=GpuChoice(count=4)) == (0, 1, 2, 3)


def test_a_machine_without_gpus_runs_no_more_ranks_than_it_has_cores() -> None:
    with pytest.raises(Unavailable, match="cannot start 9 ranks"):
        _place(CPU_MACHINE, gpus=GpuChoice(count=9))


def test_a_machine_without_gpus_has_none_to_choose() -> None:
    with pytest.raises(Unavailable, match="no GPU to choose"):
        _place(CPU_MACHINE, gpus=GpuChoice(devices=(0,)))


@pytest.mark.parametrize("on", [FOUR_GPUS, CPU_MACHINE], ids=["gpus", "cpu"])
def test_a_filter_that_names_no_host_here_is_wrong_usage(on: Machine) -> None:
    with pytest.raises(WrongUsage, match="no host `w9`"):
        _place(on, include="w9")


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"gpus": GpuChoice(count=1), "include": "localhost:2"}, "both choose devices"),
        ({"gpus": GpuChoice(count=1), "hostfile": Path("hosts")}, "applies only to this machine"),
        ({"hosts": "w0:1", "hostfile": Path("hosts")}, "both name the hosts"),
    ],
)
def test_options_that_exclude_each_other_are_wrong_usage(asked: dict[str, Any], complaint: str) -> None:
    with pytest.raises(WrongUsage, match=complaint):
        refuse_contradictions(JobSpec(script=Path("train.py"), **asked))


def test_hosts_are_used_as_they_are() -> None:
    assert _place(FOUR_GPUS, HOSTS) == Topology(tuple(HOSTS), reach=Reach.SSH)


def test_a_filter_chooses_among_the_hosts() -> None:
    assert _place(FOUR_GPUS, HOSTS, include="w1") == Topology((HOSTS[1],), reach=Reach.SSH)


@pytest.mark.parametrize(("gpus", "cores", "most"), [(8, 4, 8), (4, 64, 4), (1, 1, 1), (0, 4, 4), (0, 1, 2)])
def test_a_machine_has_a_slot_for_each_gpu_or_core(gpus: int, cores: int, most: int) -> None:
    assert most_slots(gpus, cores) == most


@given(st.integers(1, 64), st.integers(1, 64))
def test_a_machine_runs_the_ranks_that_were_asked_for_or_none(count: int, cores: int) -> None:
    try:
        topology = _place(machine(cores=cores), gpus=GpuChoice(count=count))
    except Unavailable:
        topology = None
    assert (topology and topology.world_size) == (count if count <= most_slots(0, cores) else None)
