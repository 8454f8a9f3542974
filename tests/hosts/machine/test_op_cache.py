"""Where the ops of an environment are kept."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.making import CPU_MACHINE, TWO_GPUS, gpu, interpreter, machine
from zlaunch.hosts.machine.interpreter import Interpreter, Package
from zlaunch.hosts.machine.op_cache import OpCache, find_op_cache
from zlaunch.hosts.machine.resources import Machine

ENVIRON = {"XDG_CACHE_HOME": "/cache"}


@pytest.fixture
def python(tmp_path: Path) -> Interpreter:
    python = with_torch(interpreter(str(tmp_path / "venv")), "cuda: Optional[str] = '12.8'\nhip = None\n")
    with_ninja(Path(python.scripts), "1.13.0")
    return python


def with_ninja(folder: Path, version: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "ninja").write_text(f"#!/bin/sh\necho {version}\n")
    (folder / "ninja").chmod(0o755)
    return str(folder)


def with_torch(python: Interpreter, version: str) -> Interpreter:
    folder = python.folder("torch")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "version.py").write_text(version)
    return python


def cache(python: Interpreter, on: Machine = TWO_GPUS, **environ: str) -> OpCache:
    return find_op_cache(python, on, {**ENVIRON, **environ})


def installed(python: Interpreter, name: str, **changes: str) -> Interpreter:
    """Give a package another version or folder."""
    package = python.packages[name]
    assert isinstance(package, Package)
    return replace(python, packages={**python.packages, name: replace(package, **changes)})  # type: ignore[arg-type]


def test_an_environment_has_a_directory_of_its_own_beside_torchs(python: Interpreter) -> None:
    found = cache(python)
    assert found.standard == Path("/cache/torch_extensions/py312_cu128")
    assert found.folder.parent == found.standard.parent
    assert found.folder.name.startswith("py312_cu128-")


def test_a_directory_that_the_user_chose_is_taken(python: Interpreter) -> None:
    found = cache(python, TORCH_EXTENSIONS_DIR="mine")
    assert (found.folder, found.standard) == (Path("mine"), Path("mine"))


def test_directories_are_told_apart_once_they_are_there(python: Interpreter, tmp_path: Path) -> None:
    mine, others = tmp_path / "mine", tmp_path / "others"
    assert cache(python, TORCH_EXTENSIONS_DIR=str(mine)).identity is None
    mine.mkdir()
    others.mkdir()
    found = [cache(python, TORCH_EXTENSIONS_DIR=str(one)).identity for one in (mine, mine, others)]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("cuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n", "py312_cu128"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.3.1'\n", "py312_rocm631"),
        ("cuda = None\n", "py312_cpu"),
    ],
)
def test_torchs_directory_is_named_as_torch_names_it(version: str, name: str, python: Interpreter) -> None:
    assert cache(with_torch(python, version)).standard.name == name


SAME: dict[str, Callable[[Interpreter], tuple[Interpreter, Machine, dict[str, str]]]] = {
    "a worktree with the same packages": lambda python: (
        replace(python, executable="/worktree/bin/python", scripts="/worktree/bin", ninja=python.scripts),
        TWO_GPUS,
        {},
    ),
    "another transformers": lambda python: (installed(python, "transformers", version="9"), TWO_GPUS, {}),
    "one of the GPUs": lambda python: (python, machine(gpu(1)), {}),
    "other variables": lambda python: (python, TWO_GPUS, {"NCCL_DEBUG": "INFO", "PATH": "/bin"}),
    "the environment is activated": lambda python: (python, TWO_GPUS, {"PATH": f"{python.scripts}:/bin"}),
    "another ninja further back": lambda python: (
        python,
        TWO_GPUS,
        {"PATH": with_ninja(Path(python.include), "1.11.1")},
    ),
}
OTHER: dict[str, Callable[[Interpreter], tuple[Interpreter, Machine, dict[str, str]]]] = {
    "another torch": lambda python: (installed(python, "torch", version="9"), TWO_GPUS, {}),
    "another deepspeed": lambda python: (installed(python, "deepspeed", version="9"), TWO_GPUS, {}),
    "deepspeed elsewhere": lambda python: (installed(python, "deepspeed", folder="/src"), TWO_GPUS, {}),
    "headers elsewhere": lambda python: (replace(python, include="/include"), TWO_GPUS, {}),
    "other GPUs": lambda python: (python, machine(gpu(0, (8, 0))), {}),
    "no GPU": lambda python: (python, CPU_MACHINE, {}),
    "another ninja": lambda python: (
        python,
        TWO_GPUS,
        {"PATH": f"{with_ninja(Path(python.include), '1.11.1')}:{python.scripts}"},
    ),
    "another compiler": lambda python: (python, TWO_GPUS, {"CXX": "clang++"}),
    "another CUDA toolkit": lambda python: (python, TWO_GPUS, {"CUDA_HOME": "/usr/local/cuda-12.4"}),
}


@pytest.mark.parametrize("case", SAME)
def test_what_torch_would_not_compile_again_is_kept_in_the_same_directory(
    case: str, python: Interpreter
) -> None:
    changed, on, environ = SAME[case](python)
    assert cache(changed, on, **environ) == cache(python)


@pytest.mark.parametrize("case", OTHER)
def test_what_torch_would_compile_again_is_kept_in_another_directory(case: str, python: Interpreter) -> None:
    changed, on, environ = OTHER[case](python)
    assert cache(changed, on, **environ).folder != cache(python).folder
