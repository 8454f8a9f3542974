"""Pythons: what they are asked, what they see, and what is wrong with them."""

import sys
import venv
from dataclasses import replace
from pathlib import Path

import pytest

from tests.making import PYTHON, interpreter
from tests.running import run
from zlaunch.errors import InputMissing, Unavailable
from zlaunch.hosts.machine.interpreter import (
    NAMES,
    Interpreter,
    check_packages,
    find_module_in,
    find_python,
    inspect_python,
)
from zlaunch.process import ours


def program(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def refused(text: object) -> Unavailable:
    with pytest.raises(Unavailable) as caught:
        find_python(str(text))
    return caught.value


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing but some modules of its own."""
    folder = tmp_path_factory.mktemp("other")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in ("torch", "deepspeed", "mine"):
        (site / name).mkdir()
        (site / name / "__init__.py").write_text("raise ImportError('nothing here is imported')\n")
    (site / "mine" / "train.py").touch()
    (site / "wandb").mkdir()
    (site / "noisy.pth").write_text("import sys; print('hello'); sys.stderr.write('a warning')\n")
    return folder


def test_a_path_is_an_interpreter_and_not_what_it_links_to(tmp_path: Path) -> None:
    link = tmp_path / "mine"
    link.symlink_to(sys.executable)
    assert find_python(str(link)) == link


def test_a_directory_is_an_environment(other: Path) -> None:
    assert find_python(str(other)) == other / "bin" / "python"


def test_a_name_is_a_program_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = program(tmp_path / "python9", f'exec {sys.executable} "$@"')
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_python("python9") == file


def test_a_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = program(tmp_path / "venv" / "bin" / "python", f'exec {sys.executable} "$@"')
    monkeypatch.chdir(tmp_path)
    assert find_python("venv") == find_python("venv/bin/python") == file


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    assert refused(tmp_path / "nothing").message == f"there is no Python `{tmp_path / 'nothing'}`"


def test_a_directory_that_is_no_environment_is_said(tmp_path: Path) -> None:
    assert refused(tmp_path).message == f"`--python {tmp_path}`: this directory has no `bin/python`"


def test_a_file_that_is_no_program_is_said(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    assert refused(tmp_path / "notes").message == f"`{tmp_path / 'notes'}` cannot be run"


def test_a_program_that_is_no_python_is_run_only_for_its_version(tmp_path: Path) -> None:
    file = program(tmp_path / "perl", f'echo "$*" >> {tmp_path}/asked; echo This is perl 5')
    assert refused(file).message == f"`{file}` is not a Python interpreter"
    assert (tmp_path / "asked").read_text() == "-V\n"


@pytest.mark.parametrize("version", ["2.7.18", "3.6.15", "3.9.18"])
def test_a_python_that_is_too_old_is_said_with_its_version(version: str, tmp_path: Path) -> None:
    file = program(tmp_path / "python", f"echo Python {version} >&2")
    assert refused(file).message == f"`{file}` is Python {version}, but zlaunch needs 3.10 or newer"


def test_a_python_that_cannot_run_programs_says_why(tmp_path: Path) -> None:
    file = program(tmp_path / "python", 'test "$1" = -V && echo Python 3.12.1 && exit; echo no disk; exit 1')
    with pytest.raises(Unavailable, match="cannot run zlaunch's programs: no disk"):
        inspect_python(find_python(str(file)))


def test_another_python_is_described_as_it_would_describe_itself(other: Path) -> None:
    found = inspect_python(other / "bin" / "python", ["mine", "nothing"])
    (site,) = other.glob("lib/python*/site-packages")
    folders = {name: package and package.folder for name, package in found.packages.items()}
    mine = ("torch", "deepspeed", "mine")
    assert folders == {
        **dict.fromkeys((*NAMES, "nothing")),
        **{name: str(site / name) for name in mine},
    }
    assert (found.executable, found.scripts) == (str(other / "bin" / "python"), str(other / "bin"))


def test_this_python_is_described_alike_from_inside_and_outside(tmp_path: Path) -> None:
    link = tmp_path / "python"
    program(link, f'exec {sys.executable} "$@"')
    outside = inspect_python(link)
    assert replace(outside, executable=sys.executable) == inspect_python(None)


def test_a_mere_directory_of_its_name_is_no_package(other: Path) -> None:
    assert inspect_python(other / "bin" / "python", ["wandb"]).packages["wandb"] is None


def test_a_module_is_found_where_that_python_finds_it(other: Path) -> None:
    (site,) = other.glob("lib/python*/site-packages")
    assert find_module_in(other / "bin" / "python", "mine.train") == site / "mine" / "train.py"


def test_a_module_that_another_python_does_not_have_is_said_as_for_this_one(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputMissing, match=r"there is no module `mine\.trains`: mine has no `trains`"
    ) as caught:
        find_module_in(other / "bin" / "python", "mine.trains")
    assert caught.value.hint == "did you mean `-m mine.train`?"


def test_a_module_of_the_working_directory_comes_first(
    other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").touch()
    monkeypatch.chdir(tmp_path)
    assert find_module_in(other / "bin" / "python", "mine") == tmp_path / "mine.py"


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        (("torch",), "`/venv/bin/python` lacks torch"),
        (("deepspeed",), "`/venv/bin/python` lacks deepspeed"),
        (("torch", "deepspeed"), "`/venv/bin/python` lacks torch and deepspeed"),
    ],
)
def test_all_packages_that_are_missing_are_said_at_once(
    missing: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    alone(monkeypatch, tmp_path)
    with pytest.raises(Unavailable) as caught:
        check_packages(interpreter(without=missing), ("torch", "deepspeed"))
    assert caught.value.message == said
    assert (caught.value.hint or "").startswith(f"`/venv/bin/python -m pip install {' '.join(missing)}`")


def alone(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the shell have no other Python."""
    monkeypatch.setenv("PATH", str(folder))
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_the_active_environment_is_named_if_it_has_the_packages(
    variable: str, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone(monkeypatch, tmp_path)
    monkeypatch.setenv(variable, str(other))
    with pytest.raises(Unavailable) as caught:
        check_packages(interpreter(without=("torch",)), ("torch", "deepspeed"))
    assert caught.value.hint == f"`--python {other}` has it"
    with pytest.raises(Unavailable) as caught:
        check_packages(interpreter(without=("transformers",)), ["transformers"])
    assert "--python PATH" in (caught.value.hint or "")


def test_a_torch_without_its_launcher_is_said(other: Path) -> None:
    found = inspect_python(other / "bin" / "python")
    with pytest.raises(Unavailable, match=r"has no `torch\.distributed\.run`"):
        check_packages(found, ("torch", "deepspeed"))


def test_a_package_that_was_never_asked_about_is_not_taken_for_a_missing_one() -> None:
    with pytest.raises(KeyError):
        PYTHON.versions(["never_asked"])


def test_ninja_is_where_its_package_put_it(tmp_path: Path) -> None:
    """As in an environment that sees the packages of another one, but not its programs."""
    there, here = tmp_path / "there", tmp_path / "here"
    info = there / "lib" / "ninja-1.13.0.dist-info"
    info.mkdir(parents=True)
    program(there / "bin" / "ninja", "exit")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ninja\nVersion: 1.13.0\n")
    (info / "RECORD").write_text("../bin/ninja,,\n")
    venv.create(here, symlinks=True)
    (site,) = here.glob("lib/python*/site-packages")
    (site / "there.pth").write_text(f"{there / 'lib'}\n")
    found: Interpreter = inspect_python(here / "bin" / "python")
    assert found.programs == (str(here / "bin"), str(there / "bin"))


def test_a_program_of_ours_sees_the_packages_of_the_first_folder_on_pythonpath(tmp_path: Path) -> None:
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").touch()
    program = "import sys; from zlaunch.hosts.machine.interpreter import *; print(inspect_python(None).packages['deepspeed'])"
    (tmp_path / "zl_ask.py").write_text(program)
    said = run(*ours("zl_ask"), cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert str(tmp_path / "deepspeed") in said.out
