"""Speeds that were measured on hosts, kept for estimates."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.making import gpu, machine
from zlaunch.hosts.machine.measured_speeds import (
    FILE,
    NOTHING_MEASURED,
    MeasuredSpeeds,
    keep_speed,
    measured_speeds,
)

HERE = machine(gpu(0), gpu(1))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZLAUNCH_CACHE", str(tmp_path))
    return tmp_path


def test_the_newest_measurement_of_this_machine_is_used(tmp_path: Path) -> None:
    for speed in (1e9, 2e9):
        keep_speed("links", [HERE.hostname], speed, HERE.gpus[0].name)
        keep_speed("nvme", [HERE.hostname], speed, str(tmp_path))
    assert measured_speeds(["localhost"], HERE, tmp_path) == MeasuredSpeeds(links=2e9, nvme=2e9)


def test_hosts_are_those_of_the_job_in_any_order() -> None:
    keep_speed("network", ["b", "a"], 3e9)
    assert measured_speeds(["a", "b"], HERE).network == 3e9
    assert measured_speeds(["a", "c"], HERE) == measured_speeds(["a"], HERE) == NOTHING_MEASURED


def test_a_directory_that_the_job_makes_is_on_the_drive_of_its_parent(tmp_path: Path) -> None:
    keep_speed("nvme", [HERE.hostname], 1e9, str(tmp_path))
    assert measured_speeds([], HERE, tmp_path / "new" / "swap").nvme == 1e9


def test_nothing_is_known_of_another_gpu_machine_or_drive() -> None:
    keep_speed("links", [HERE.hostname], 1e9, "NVIDIA GeForce RTX 3090")
    keep_speed("links", ["another"], 1e9, HERE.gpus[0].name)
    keep_speed("nvme", [HERE.hostname], 1e9, "/proc")
    assert measured_speeds([], HERE, Path()) == NOTHING_MEASURED


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"part": "links", "hosts": 3}', '{"bytes_per_second": "x"}', "\0"]
)
def test_a_damaged_file_is_as_good_as_none(line: str, cache: Path) -> None:
    (cache / FILE).write_text(f"{line}\n")
    assert measured_speeds([], HERE) == NOTHING_MEASURED


def test_a_cache_that_cannot_be_written_keeps_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "file").touch()
    monkeypatch.setenv("ZLAUNCH_CACHE", str(cache / "file"))
    keep_speed("links", [HERE.hostname], 1e9, HERE.gpus[0].name)
    assert measured_speeds([], replace(HERE, num_cores=1)) == NOTHING_MEASURED
