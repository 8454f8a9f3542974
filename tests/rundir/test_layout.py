import errno
import stat
from pathlib import Path

import pytest

from zlaunch.files import nearest, write_whole
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.write import create_root


def test_a_file_that_found_no_room_leaves_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / ".error.json.partial").symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its number is what is asked for
        write_whole(tmp_path / "error.json", "{}")
    assert (caught.value.errno, list(tmp_path.iterdir())) == (errno.ENOSPC, [])


def test_a_path_that_cannot_be_looked_at_is_not_there(tmp_path: Path) -> None:
    assert nearest(tmp_path / ("a" * 300) / "b") == tmp_path


@pytest.mark.parametrize(("is_shared", "mode"), [(False, 0o700), (True, 0o755)])
def test_a_run_directory_is_private_unless_it_is_shared_and_its_parents_are_not(
    tmp_path: Path, is_shared: bool, mode: int
) -> None:
    create_root(RunDir(tmp_path / "runs" / "a"), is_shared=is_shared)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("runs", "runs/a")]
    assert modes == [0o755, mode]


def test_a_directory_that_exists_becomes_private_too(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o755)
    create_root(RunDir(tmp_path / "mine"), is_shared=False)
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o700
