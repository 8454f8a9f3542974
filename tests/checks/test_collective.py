"""The rate of a real all-reduce, kept for estimates."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.making import PYTHON, gpu, machine
from zlaunch.checks.collective import keep_rate
from zlaunch.hosts.agent.examination import Examined
from zlaunch.hosts.cluster.topology import Host
from zlaunch.hosts.machine.facts import MachineFacts
from zlaunch.hosts.machine.measured_speeds import NOTHING_MEASURED, MeasuredSpeeds, measured_speeds
from zlaunch.hosts.machine.resources import Gpu

HERE = machine(gpu(0), gpu(1))
OTHER_GPU = replace(gpu(1), name="NVIDIA A40")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZLAUNCH_CACHE", str(tmp_path))


def examined(name: str, *gpus: Gpu) -> Examined:
    return Examined(Host(name, ()), facts=MachineFacts(PYTHON, machine(*(gpus or HERE.gpus))))


def test_between_gpus_of_one_host_it_is_the_rate_of_its_links() -> None:
    keep_rate(2e11, "nccl", [examined("localhost")])
    assert measured_speeds(["localhost"], HERE) == MeasuredSpeeds(links=2e11)


def test_between_hosts_it_is_the_rate_of_the_network() -> None:
    keep_rate(1e10, "nccl", [examined("node1"), examined("node2")])
    assert measured_speeds(["node1", "node2"], HERE) == MeasuredSpeeds(network=1e10)


@pytest.mark.parametrize(("backend", "gpus"), [("gloo", HERE.gpus), ("nccl", (gpu(0), OTHER_GPU))])
def test_gloo_and_gpus_of_several_models_tell_nothing(backend: str, gpus: tuple[Gpu, ...]) -> None:
    keep_rate(1e9, backend, [examined("localhost", *gpus)])
    assert measured_speeds([], HERE) == NOTHING_MEASURED
