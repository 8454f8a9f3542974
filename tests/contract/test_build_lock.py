"""What a lock means, against the torch that is installed: its build, and a build that is killed."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zlaunch.cli.views.launch import LaunchView
from zlaunch.hosts.machine.build_lock import lock_holder, lock_state
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.launch.op_build import await_lock

PYTHON = inspect_python(None)


class Waits(Exception):
    """Torch waits for another build."""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Have torch load an op whose compilation is a function."""
    from torch.utils import cpp_extension, file_baton

    def wait(_: object) -> None:
        raise Waits

    def load(compiles: Callable[[], Any]) -> None:
        monkeypatch.setattr(cpp_extension, "_write_ninja_file_and_build_library", lambda **_: compiles())
        monkeypatch.setattr(file_baton.FileBaton, "wait", wait)
        source = tmp_path / "op.cpp"
        source.write_text(f"// {os.urandom(8).hex()}\n")  # torch skips what it has built in this process
        monkeypatch.setattr(cpp_extension, "_import_module_from_library", lambda *_: None)
        cpp_extension.load("op", [str(source)], build_directory=str(tmp_path), is_python_module=True)

    return load


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def test_the_lock_of_a_build_is_held_by_its_process_and_free_afterwards(
    load: Callable[[Callable[[], Any]], None], lock: Path
) -> None:
    during: list[object] = []
    load(lambda: during.extend([lock_state(lock, PYTHON), lock_holder(lock)]))
    assert (during, lock_state(lock, PYTHON)) == (["held", os.getpid()], "free")


def test_a_killed_build_leaves_its_lock_exactly_if_torch_would_wait_for_it(
    load: Callable[[Callable[[], Any]], None], lock: Path
) -> None:
    if (child := os.fork()) == 0:
        load(lambda: os.kill(os.getpid(), signal.SIGKILL))
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    state, builds = lock_state(lock, PYTHON), []
    try:
        load(lambda: builds.append(1))
    except Waits:
        assert state == "left"
    else:
        assert state == "free"
    await_lock(lock, PYTHON, LaunchView())
    load(lambda: builds.append(1))
    assert builds
