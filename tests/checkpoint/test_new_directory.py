"""Directories that appear when they are complete, and what is left of those that a kill has interrupted."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from zlaunch.checkpoint.new_directory import new_directory
from zlaunch.errors import Unavailable


@pytest.fixture
def writer(tmp_path: Path) -> int:
    """A process that fills `out` for as long as it lives."""
    if not (pid := os.fork()):
        with new_directory(tmp_path / "out", 0) as partial:
            (partial / "half").touch()
            time.sleep(60)
        os._exit(0)
    while not any(tmp_path.glob(".out.*/half")):
        time.sleep(0.01)
    return pid


def write(tmp_path: Path) -> list[str]:
    with new_directory(tmp_path / "out", 0) as partial:
        (partial / "whole").touch()
    return sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*"))


def test_what_a_killed_process_left_is_deleted_by_the_next(writer: int, tmp_path: Path) -> None:
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    assert write(tmp_path) == ["out", "out/whole"]


def test_what_another_process_writes_just_now_stays(writer: int, tmp_path: Path) -> None:
    try:
        assert any(name.endswith(".partial/half") for name in write(tmp_path))
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)


def test_what_another_host_may_write_just_now_stays(tmp_path: Path) -> None:
    other = tmp_path / ".out.another-host.77.partial"
    other.mkdir()
    write(tmp_path)
    assert other.is_dir()


def test_space_of_what_was_left_counts_as_free(writer: int, tmp_path: Path) -> None:
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    with pytest.raises(Unavailable, match="needs"), new_directory(tmp_path / "out", 1 << 60):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_error_leaves_none_of_the_parents_that_did_not_exist(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="bad"), new_directory(tmp_path / "empty" / "a" / "b" / "out", 0):
        raise ValueError("bad")
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]
    with new_directory(tmp_path / "empty" / "a" / "out", 0):
        pass
    assert (tmp_path / "empty" / "a" / "out").is_dir()


def test_what_another_process_begins_or_ends_to_write_just_now_stays(tmp_path: Path) -> None:
    def write_and_look() -> None:
        with new_directory(tmp_path / "out", 0) as partial:
            (partial / "whole").touch()
        shutil.rmtree(tmp_path / "out")

    def delete_abandoned() -> None:
        while True:
            with pytest.raises(Unavailable, match="needs"), new_directory(tmp_path / "out", 1 << 60):
                pass

    others = [in_process(delete_abandoned) for _ in range(3)]
    try:
        assert [os.waitpid(in_process(write_and_look), 0)[1] for _ in range(20)] == [0] * 20
    finally:
        for other in others:
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)


def in_process(work: Callable[[], None]) -> int:
    if not (pid := os.fork()):
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid
