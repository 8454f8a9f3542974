"""Folders for temporary files: left over by whoever is gone, kept for whoever is there."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.running import Program
from zlaunch.estimate.temp_dirs import Scratch

HOLDER = """
import sys, tempfile
from zlaunch.estimate.temp_dirs import Scratch
tempfile.tempdir = sys.argv[1]
mine = Scratch("tests")
(mine.path / "file").touch()
print(mine.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_folder_lives_as_long_as_the_process_that_made_it_and_others_are_left_alone(tmp_path: Path) -> None:
    foreign = tmp_path / "zlaunch-else-1"
    foreign.mkdir()
    argv = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with Program(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        folder = Path(holder.stdout.readline().strip())
        first = Scratch("tests")
        assert (folder / "file").exists()
        holder.kill()
    second = Scratch("tests")
    assert not folder.exists()
    assert sorted(tmp_path.iterdir()) == sorted([foreign, first.path, second.path])
    first.delete()
    second.delete()
    assert list(tmp_path.iterdir()) == [foreign]


def test_a_link_that_looks_like_a_leftover_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    (tmp_path / "zlaunch-tests-link").symlink_to(tmp_path / "mine")
    Scratch("tests").delete()
    assert (tmp_path / "mine" / "file").exists()
