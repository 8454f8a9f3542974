"""Which ops are ready: real ninja, and "libraries" that it copies together."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.making import interpreter
from tests.running import ACTIVATED
from zlaunch.dsconfig.native_ops import OPS, NativeOp
from zlaunch.hosts.machine.compiled_ops import MARK, CompiledOps
from zlaunch.hosts.machine.interpreter import Interpreter

ADAM = OPS["cpu_adam"]
BUILD = """\
rule compile
  command = cp $in $out # -isystem {python.packages[torch].folder}/include -isystem {python.include}
rule link
  command = cat $in > $out
build {name}.o: compile {source}
build {name}.so: link {name}.o
default {name}.so
"""


@pytest.fixture
def python(tmp_path: Path) -> Interpreter:
    """An environment with a source of the op."""
    return environment(tmp_path / "venv")


def environment(folder: Path) -> Interpreter:
    made = interpreter(str(folder))
    source(made).mkdir(parents=True)
    (source(made) / "cpu_adam.cpp").write_text("// Adam\n")
    return made


def source(python: Interpreter) -> Path:
    return python.folder("deepspeed") / "ops" / "csrc"


def build(folder: Path, python: Interpreter, name: str = "cpu_adam") -> None:
    """Do what torch does when an op is loaded: write the commands, and let ninja decide."""
    folder.mkdir(parents=True, exist_ok=True)
    file = source(python) / f"{name}.cpp"
    text = BUILD.format(name=name, python=python, source=file)
    if not (folder / "build.ninja").exists() or (folder / "build.ninja").read_text() != text:
        (folder / "build.ninja").write_text(text)
    subprocess.run(["ninja", "-C", folder], env={**os.environ, **ACTIVATED}, check=True, capture_output=True)


def ops_in(folder: Path, python: Interpreter, key: str = "torch 1.0\n") -> CompiledOps:
    return CompiledOps(folder, python, key, ACTIVATED["PATH"])


@pytest.fixture
def built(tmp_path: Path, python: Interpreter) -> CompiledOps:
    """An op that was compiled and marked."""
    ops = ops_in(tmp_path / "ops", python)
    build(ops.folder / "cpu_adam", python)
    ops.mark(ADAM)
    assert ops.why_not_ready(ADAM) is None
    return ops


def later(file: Path, seconds: float = 5.0) -> None:
    now = time.time() + seconds
    os.utime(file, (now, now))


CHANGED = "its files have changed since it was compiled"
OTHER = "its library was built for another environment"

HARMS: dict[str, tuple[Callable[[Path, Interpreter], object], str]] = {
    "its object file was deleted": (lambda folder, _: (folder / "cpu_adam.o").unlink(), CHANGED),
    "its library was deleted": (lambda folder, _: (folder / "cpu_adam.so").unlink(), CHANGED),
    "its commands were deleted": (lambda folder, _: (folder / "build.ninja").unlink(), CHANGED),
    "ninja's log was deleted": (lambda folder, _: (folder / ".ninja_log").unlink(), CHANGED),
    "its source is newer": (lambda _, python: later(source(python) / "cpu_adam.cpp"), CHANGED),
    "its source was deleted": (lambda _, python: (source(python) / "cpu_adam.cpp").unlink(), CHANGED),
    "its folder was deleted": (lambda folder, _: shutil.rmtree(folder), ""),
    "its build was killed": (lambda folder, _: (folder / "lock").touch(), ""),
    "its mark was deleted": (
        lambda folder, _: (folder / MARK).unlink(),
        "its library was built without zlaunch",
    ),
    "torch was installed again": (lambda folder, _: later(folder / "cpu_adam.so", -50.0), OTHER),
}


@pytest.mark.parametrize("harm", HARMS)
def test_an_op_that_ninja_or_torch_would_compile_again_is_not_ready(harm: str, built: CompiledOps) -> None:
    apply, why = HARMS[harm]
    installed = time.time() - 20
    packages = {
        name: package and replace(package, installed=installed)
        for name, package in built.python.packages.items()
    }
    ops = replace(built, python=replace(built.python, packages=packages))
    assert ops.why_not_ready(ADAM) is None
    apply(built.folder / "cpu_adam", built.python)
    assert ops.why_not_ready(ADAM) == why


def test_an_op_of_another_environment_is_not_ready_and_leaves_nothing_behind(built: CompiledOps) -> None:
    other = replace(built, key="torch 2.0\n")
    assert (other.why_not_ready(ADAM), other.is_compiled(ADAM)) == (OTHER, False)
    other.delete_others(ADAM)
    left = {file.name for file in (built.folder / "cpu_adam").iterdir()}
    assert left == {"build.ninja", ".ninja_log"}
    assert other.why_not_ready(ADAM) == ""


def test_an_op_that_another_environment_built_over_it_is_not_ready(
    built: CompiledOps, tmp_path: Path
) -> None:
    """In a directory of the user's, where a bare launcher leaves no mark."""
    build(built.folder / "cpu_adam", environment(tmp_path / "other"))
    assert built.why_not_ready(ADAM) == CHANGED


def test_an_op_that_torch_would_load_as_it_is_is_left_alone(built: CompiledOps) -> None:
    before = {file: file.stat().st_mtime_ns for file in (built.folder / "cpu_adam").iterdir()}
    built.delete_others(ADAM)
    build(built.folder / "cpu_adam", built.python)
    assert built.why_not_ready(ADAM) is None
    assert {file: file.stat().st_mtime_ns for file in before if file.suffix != ".ninja_log"} == before


def test_an_op_that_is_installed_with_deepspeed_is_ready_once_it_was_loaded(
    tmp_path: Path, python: Interpreter
) -> None:
    ops = ops_in(tmp_path / "ops", python)
    assert ops.why_not_ready(ADAM) == ""
    ops.mark(ADAM)
    assert ops.why_not_ready(ADAM) is None


def test_ops_that_are_built_along_count_too(tmp_path: Path, python: Interpreter) -> None:
    aio: NativeOp = OPS["async_io"]
    ops = ops_in(tmp_path / "ops", python)
    ops.mark(aio)
    assert ops.why_not_ready(aio) is None
    (ops.folder / "pin_memory" / MARK).unlink()
    assert ops.why_not_ready(aio) == ""


def test_without_ninja_nothing_is_known_to_be_ready(built: CompiledOps, tmp_path: Path) -> None:
    assert replace(built, path=str(tmp_path)).why_not_ready(ADAM) == CHANGED


def test_what_a_bare_launcher_compiled_for_the_same_packages_is_copied(
    tmp_path: Path, python: Interpreter
) -> None:
    standard = tmp_path / "torch_extensions" / "py312_cpu"
    build(standard / "cpu_adam", python)
    ops = ops_in(tmp_path / "ops", python)
    assert ops.adopt(standard) == ["cpu_adam"]
    assert ops.why_not_ready(ADAM) == "its library was built without zlaunch"
    ops.mark(ADAM)
    assert ops.why_not_ready(ADAM) is None  # ninja has nothing to do in the copy
    assert (ops.adopt(standard), [file.name for file in ops.folder.iterdir()]) == ([], ["cpu_adam"])


REASONS: dict[str, Callable[[Path, Path], object]] = {
    "of other packages": lambda folder, other: build(folder, environment(other)),
    "being built": lambda folder, _: (folder / "lock").touch(),
    "without a library": lambda folder, _: (folder / "cpu_adam.so").unlink(),
    "without commands": lambda folder, _: (folder / "build.ninja").unlink(),
}


@pytest.mark.parametrize("reason", REASONS)
def test_what_does_not_fit_is_not_copied(reason: str, tmp_path: Path, python: Interpreter) -> None:
    standard = tmp_path / "py312_cpu"
    build(standard / "cpu_adam", python)
    REASONS[reason](standard / "cpu_adam", tmp_path / "other")
    ops = ops_in(tmp_path / "ops", python)
    assert ops.adopt(standard) == []
    assert not ops.folder.exists() or not list(ops.folder.iterdir())
