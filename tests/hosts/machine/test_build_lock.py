"""What a lock of torch means, where the file itself is the lock and where the kernel has it."""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.making import interpreter
from tests.running import Program
from zlaunch.cli.views.launch import LaunchView
from zlaunch.hosts.machine.build_lock import QUIET_SECONDS, lock_holder, lock_state
from zlaunch.hosts.machine.interpreter import Interpreter
from zlaunch.launch.op_build import await_lock
from zlaunch.whereabouts import whereabouts

SOURCES = {
    "up to torch 2.13": "    baton = FileBaton(os.path.join(build_directory, 'lock'))\n",
    "newer": "    with FileLock(os.path.join(build_directory, 'lock')):\n",
}
EVERY_TORCH = pytest.mark.parametrize("torch", SOURCES)
HOLDS = "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); input()"


def python_with(torch: str, folder: Path) -> Interpreter:
    python = interpreter(str(folder / "venv"))
    source = python.folder("torch") / "utils" / "cpp_extension.py"
    source.parent.mkdir(parents=True)
    source.write_text(SOURCES[torch])
    return python


@pytest.fixture
def by_file(tmp_path: Path) -> Interpreter:
    return python_with("up to torch 2.13", tmp_path)


@pytest.fixture
def in_kernel(tmp_path: Path) -> Interpreter:
    return python_with("newer", tmp_path)


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    """A lock that no process here has open, of a build that wrote a file a minute ago."""
    lock = tmp_path / "cpu_adam" / "lock"
    lock.parent.mkdir()
    lock.touch()
    return lock


def has_been_quiet(lock: Path) -> None:
    before = time.time() - QUIET_SECONDS - 1
    os.utime(lock, (before, before))


@contextmanager
def locked_in_kernel(lock: Path) -> Iterator[None]:
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@EVERY_TORCH
def test_nobody_waits_for_a_lock_that_is_not_there(torch: str, tmp_path: Path) -> None:
    assert lock_state(tmp_path / "cpu_adam" / "lock", python_with(torch, tmp_path)) == "free"


@EVERY_TORCH
def test_a_lock_that_a_process_has_in_the_kernel_is_held(torch: str, lock: Path, tmp_path: Path) -> None:
    """The torch of another environment may build in the same directory."""
    with locked_in_kernel(lock):
        has_been_quiet(lock)
        assert lock_state(lock, python_with(torch, tmp_path)) == "held"
        assert lock_holder(lock) == os.getpid()


def test_a_lock_in_the_kernel_ends_with_its_process_and_leaves_the_file(
    lock: Path, in_kernel: Interpreter
) -> None:
    argv = [sys.executable, "-SEc", HOLDS, str(lock)]
    with Program(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as builder:
        assert builder.stdout is not None
        builder.stdout.readline()
        assert (lock_state(lock, in_kernel), lock_holder(lock)) == ("held", builder.pid)
        builder.kill()
        builder.wait()
    assert (lock_state(lock, in_kernel), lock.exists()) == ("free", True)


def test_a_file_that_a_process_has_open_is_held(lock: Path, by_file: Interpreter) -> None:
    with lock.open():
        has_been_quiet(lock)
        assert lock_state(lock, by_file) == "held"


@pytest.mark.parametrize("signed", ["", " ".join(whereabouts())])
def test_a_file_of_this_machine_that_no_process_has_open_is_left_by_a_killed_build(
    lock: Path, signed: str, by_file: Interpreter
) -> None:
    lock.write_text(signed)
    assert lock_state(lock, by_file) == "left"


def test_a_build_that_is_about_to_delete_its_lock_is_not_taken_for_a_killed_one(
    lock: Path, by_file: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch closes the file before it deletes it, and fails if another process has deleted it."""
    monkeypatch.setattr("zlaunch.hosts.machine.build_lock.time.sleep", lambda _: lock.unlink())
    assert lock_state(lock, by_file) == "free"


def test_a_file_of_another_container_is_left_once_its_build_writes_nothing(
    lock: Path, by_file: Interpreter
) -> None:
    lock.write_text("vm 6a1f pid:[4026532000]")
    assert lock_state(lock, by_file) == "held"
    has_been_quiet(lock)
    assert lock_state(lock, by_file) == "left"
    (lock.parent / "cpu_adam.o").touch()
    assert lock_state(lock, by_file) == "held"


@pytest.mark.parametrize("signed", ["", "vm 6a1f pid:[4026532000]"])
def test_a_file_that_is_not_locked_in_the_kernel_is_free_to_newer_releases(
    lock: Path, signed: str, in_kernel: Interpreter
) -> None:
    """Whoever left it there: an older torch in the same directory, too."""
    lock.write_text(signed)
    assert lock_state(lock, in_kernel) == "free"


@EVERY_TORCH
def test_on_a_file_system_without_locks_the_file_is_the_lock(
    torch: str, lock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def has_none(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", has_none)
    assert lock_state(lock, python_with(torch, tmp_path)) == "left"
    with lock.open():
        assert lock_state(lock, python_with(torch, tmp_path / "other")) == "held"


def test_the_lock_of_a_killed_build_is_removed_and_the_user_is_told(
    lock: Path, by_file: Interpreter, capsys: pytest.CaptureFixture[str]
) -> None:
    await_lock(lock, by_file, LaunchView())
    assert (lock.exists(), capsys.readouterr().err.startswith(f"removed the lock {lock}")) == (False, True)


def test_a_file_that_newer_releases_leave_there_is_neither_removed_nor_mentioned(
    lock: Path, in_kernel: Interpreter, capsys: pytest.CaptureFixture[str]
) -> None:
    await_lock(lock, in_kernel, LaunchView())
    assert (lock.exists(), capsys.readouterr().err) == (True, "")
