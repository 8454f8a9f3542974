from pathlib import Path

from zlaunch.launch.parity import NVME, PARITY, modes_to_compare
from zlaunch.launch.tour import overrides_of


def test_nvme_is_compared_only_with_a_drive() -> None:
    assert NVME not in modes_to_compare(None)
    assert NVME in modes_to_compare(Path("drive"))


def test_buffers_for_nvme_are_left_to_zlaunch() -> None:
    assert not any("stage3" in key for key, _ in overrides_of(PARITY, NVME))


def test_directories_of_runs_have_names_without_special_characters() -> None:
    assert [mode.slug for mode in modes_to_compare(Path("drive"))][-3:] == [
        "zero-2-cpu",
        "zero-3-cpu",
        "zero-3-nvme",
    ]
