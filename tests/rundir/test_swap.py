"""Directories on a drive: those of killed runs are found, and no others."""

import json
from pathlib import Path

import pytest

from zlaunch.rundir.owner import own_identity
from zlaunch.rundir.swap import left_behind, make_swap_dir, remove_unused

NAME = "zlaunch-r-0123abcd"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"zlaunch_pid": 2**22 + 1}, [True]),
        ({"host": "elsewhere"}, []),
        (None, [False]),
    ],
)
def test_the_directory_of_a_run_whose_zlaunch_is_gone_was_left_behind(
    changes: dict[str, object] | None, found: list[bool], tmp_path: Path
) -> None:
    make_swap_dir(tmp_path / NAME)
    (tmp_path / NAME / ".zlaunch").unlink()
    if changes is not None:
        (tmp_path / NAME / ".zlaunch").write_text(json.dumps({**own_identity(), **changes}))
    assert [left.is_over for left in left_behind(tmp_path)] == found


def test_what_is_deleted_is_counted(tmp_path: Path) -> None:
    make_swap_dir(tmp_path / NAME)
    owner = tmp_path / NAME / ".zlaunch"
    owner.write_text(json.dumps({**own_identity(), "zlaunch_pid": 2**22 + 1}))
    (tmp_path / NAME / "0.swp").write_bytes(b"x" * 5000)
    (left,) = left_behind(tmp_path)
    size = 5000 + owner.stat().st_size
    assert (left.delete(), left.directory.exists()) == (size, False)


def test_other_directories_of_a_drive_are_nobodys_business(tmp_path: Path) -> None:
    for name in ("data", "zlaunch-mine", "zlaunch-r-0123ABCD"):
        (tmp_path / name).mkdir()
    (tmp_path / "zlaunch-x-00000000").symlink_to(tmp_path / "data")
    assert [*left_behind(tmp_path)] == []
    assert [*left_behind(tmp_path / "none")] == []


def test_the_directory_of_a_run_that_does_not_start_is_removed(tmp_path: Path) -> None:
    make_swap_dir(tmp_path / NAME)
    remove_unused(tmp_path / NAME)
    assert [*tmp_path.iterdir()] == []
