import errno
from pathlib import Path

import pytest

from zlaunch.files import nearest, write_whole


def test_a_file_that_found_no_room_leaves_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / ".error.json.partial").symlink_to("/dev/full")
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its number is what is asked for
        write_whole(tmp_path / "error.json", "{}")
    assert (caught.value.errno, list(tmp_path.iterdir())) == (errno.ENOSPC, [])


def test_a_path_that_cannot_be_looked_at_is_not_there(tmp_path: Path) -> None:
    assert nearest(tmp_path / ("a" * 300) / "b") == tmp_path
