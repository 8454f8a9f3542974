"""The Python that runs a job, `--python`: where it is, and which packages it sees.

The packages are looked up and never imported. Another Python than zlaunch's own is asked by running this
module in it: `zlaunch.hosts.machine.interpreter QUESTION NAME…` answers as JSON.
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from zlaunch.errors import InputMissing, Unavailable
from zlaunch.frozen import dataclass
from zlaunch.job.module_files import find_module
from zlaunch.job.stack import TESTED, SoftwareStack
from zlaunch.json_lines import answer, answers_in
from zlaunch.process import is_start_program, ours, words_of
from zlaunch.units import numbers_of

OLDEST = (3, 10)
NAMES = (
    *("torch", "deepspeed", "transformers", "accelerate", "datasets", "peft", "trl"),
    *("pydantic", "typer"),
)
"""Packages that every description covers."""

TRAINING = ("torch", "deepspeed")
"""Packages of every job with ZeRO; the rest is up to its script."""
ESTIMATING = (*TRAINING, "transformers")

_LAUNCHERS: Mapping[str, str] = {"torch": "torch.distributed.run", "deepspeed": "deepspeed.launcher.runner"}
"""Package → the module of it that starts ranks."""
_ANSWER_SECONDS = 60
"""Python may have to be read over a network file system first."""


@dataclass(frozen=True, slots=True)
class Package:
    """An installed package."""

    folder: str
    version: str | None
    """None without metadata, as for a directory on PYTHONPATH."""
    installed: float = 0.0
    """When it was installed; 0 if that is unknown."""


@dataclass(frozen=True)
class Interpreter:
    """A Python and the packages that it sees."""

    executable: str
    version: str
    tag: str
    """As torch names it in its cache: `py311`."""
    include: str
    """The directory of its C headers."""
    scripts: str
    """The directory of its programs."""
    ninja: str | None
    """The directory of the program of its package `ninja`, if that is another one."""
    packages: Mapping[str, Package | None]
    """Name → the package; None for one that it does not see."""

    @property
    def missing(self) -> frozenset[str]:
        """The packages that were looked up and that it does not see."""
        return frozenset(name for name, package in self.packages.items() if package is None)

    @property
    def programs(self) -> tuple[str, ...]:
        """The directories of its programs, for PATH."""
        return (self.scripts, *filter(None, [self.ninja]))

    def not_on_path(self, environ: Mapping[str, str]) -> list[str]:
        """Those of its directories of programs that PATH does not have."""
        path = environ.get("PATH", os.defpath).split(os.pathsep)
        return [folder for folder in self.programs if folder not in path]

    def folder(self, package: str) -> Path:
        """The directory of a package; raise Unavailable if it does not see it."""
        installed = self.packages[package]
        if installed is None:
            raise _lacking(self, [package])
        return Path(installed.folder)

    def versions(self, names: Sequence[str]) -> dict[str, str | None]:
        """Versions of packages, and of Python itself; None for packages that it does not see."""
        packages = {name: self.packages[name] for name in names}
        return {
            **{name: None if package is None else package.version for name, package in packages.items()},
            "python": self.version,
        }

    def module(self, name: str) -> tuple[str, ...]:
        """The command line of a module, if possible without the working directory on the import path."""
        safe = ("-P",) if numbers_of(self.version) >= (3, 11) else ()
        return (self.executable, *safe, "-m", name)


def find_python(text: str) -> Path:
    """Find the interpreter that was asked for: a path, a program on PATH, or an environment's directory.

    Raise Unavailable if it is missing, not a Python, or too old.
    """
    named = shutil.which(text) if os.sep not in text and not Path(text).is_dir() else None
    path = Path(named or text).expanduser().absolute()
    if path.is_dir():
        if not (path / "bin" / "python").exists():
            message = f"`--python {text}`: this directory has no `bin/python`"
            raise Unavailable(message, "name an interpreter, or the directory of its virtual environment")
        path = path / "bin" / "python"
    _check_is_python(path)
    return path


@cache
def _check_is_python(path: Path) -> None:
    if not path.exists():
        raise Unavailable(f"there is no Python `{path}`", "name one with `--python PATH`")
    printed = words_of([str(path), "-V"], _ANSWER_SECONDS)
    release = re.match(r"Python (\d+\.\d+\S*)", printed or "")
    if release is None:
        what = "cannot be run" if printed is None else "is not a Python interpreter"
        raise Unavailable(f"`{path}` {what}", "name an interpreter with `--python PATH`")
    if numbers_of(release[1]) < OLDEST:
        needed = ".".join(map(str, OLDEST))
        raise Unavailable(
            f"`{path}` is Python {release[1]}, but zlaunch needs {needed} or newer",
            "name a newer one with `--python PATH`",
        )


def inspect_python(path: Path | None, names: Sequence[str] = ()) -> Interpreter:
    """Describe an interpreter, None for zlaunch's own: all packages in `NAMES`, and others by name.

    Raise Unavailable if it is missing, not a Python, or too old.
    """
    asked = tuple(dict.fromkeys((*NAMES, *names)))
    if is_own(path):
        with _without_own_folder():
            return describe(asked)
    assert path is not None
    _check_is_python(path)
    described = _ask_interpreter(path, "describe", *asked)
    packages = {name: one and Package(**one) for name, one in described["packages"].items()}
    return Interpreter(**{**described, "packages": packages, "executable": str(path)})


def stack_of(python: Interpreter) -> SoftwareStack:
    """The releases of the packages that a job runs with."""
    torch = python.packages["torch"]
    return SoftwareStack(python.versions(tuple(TESTED)), None if torch is None else Path(torch.folder))


@cache
def installed_stack() -> SoftwareStack:
    """The releases in zlaunch's own environment."""
    return stack_of(inspect_python(None))


@contextmanager
def _without_own_folder() -> Iterator[None]:
    """Take the directory of zlaunch's program, or with `python -m` the working directory, off the path."""
    is_off = getattr(sys.flags, "safe_path", False) or is_start_program(sys.orig_argv)
    removed = [] if is_off else [sys.path.pop(0)]
    try:
        yield
    finally:
        sys.path[:0] = removed


def find_module_in(python: Path | None, name: str) -> Path:
    """Return the source file that `PYTHON -m NAME` would run; raise InputMissing if there is none."""
    if is_own(python):
        return find_module(name, os.environ)
    assert python is not None
    described = _ask_interpreter(python, "find-module", name)
    if "file" not in described:
        raise InputMissing(**described)
    return Path(described["file"])


def is_own(path: Path | None) -> bool:
    """Whether a path is the interpreter that runs zlaunch."""
    return path is None or str(path) == sys.executable


@cache
def _ask_interpreter(python: Path, question: str, *names: str) -> Any:
    """Run this module in an interpreter, and return its answer; raise Unavailable without one."""
    argv = ours("zlaunch.hosts.machine.interpreter", question, *names, python=str(python))
    printed = words_of(argv, _ANSWER_SECONDS) or ""
    answers = answers_in(printed)
    if not answers:
        last = printed.strip().rpartition("\n")[2] or "it printed nothing"
        raise Unavailable(f"`{python}` cannot run zlaunch's programs: {last}")
    return answers[-1]


def _answer_question(question: str, *names: str) -> object:
    if question == "describe":
        return describe(names)
    (name,) = names
    sys.path.insert(0, "")  # in place of the directory of zlaunch's program
    try:
        return {"file": str(find_module(name, os.environ))}
    except InputMissing as error:
        return {"message": error.message, "hint": error.hint}


def describe(names: Sequence[str]) -> Interpreter:
    """Describe the Python that runs this."""
    return Interpreter(
        executable=sys.executable,
        version=platform.python_version(),
        tag=f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}",
        include=sysconfig.get_path("include"),
        scripts=sysconfig.get_path("scripts"),
        ninja=_ninja(sysconfig.get_path("scripts")),
        packages={name: _package(name) for name in names},
    )


def _package(name: str) -> Package | None:
    """Look a package up; a mere directory of that name, as wandb leaves one, does not count."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    folder = str((*(spec.submodule_search_locations or ()), spec.origin)[0])
    with suppress(importlib.metadata.PackageNotFoundError):
        distribution = importlib.metadata.distribution(name)
        version = _version(distribution)
        record = Path(str(distribution.locate_file(f"{name}-{version}.dist-info/RECORD")))
        return Package(folder, version, record.stat().st_mtime if record.exists() else 0.0)
    return Package(folder, None)


def _version(distribution: importlib.metadata.Distribution) -> str:
    """Read the one header; `found.version` parses the long description below the headers too."""
    header = re.search(r"^Version: *(\S+)", distribution.read_text("METADATA") or "", re.MULTILINE)
    return header[1] if header else distribution.version


def _ninja(scripts: str) -> str | None:
    """Find ninja where its package installed it, which may be in another environment than this one."""
    if os.access(Path(scripts) / "ninja", os.X_OK):
        return None
    with suppress(importlib.metadata.PackageNotFoundError):
        package = importlib.metadata.distribution("ninja")
        files = [path for path in package.files or () if path.name == "ninja"]
        programs = [Path(str(package.locate_file(path))) for path in files]
        return next((str(file.resolve().parent) for file in programs if os.access(file, os.X_OK)), None)
    return None


def check_packages(python: Interpreter, needed: Sequence[str]) -> None:
    """Raise Unavailable if an interpreter lacks packages of a job, or their launchers."""
    if any(python.packages[name] is None for name in needed):
        raise _lacking(python, needed)
    for name, module in ((name, _LAUNCHERS[name]) for name in needed if name in _LAUNCHERS):
        file = python.folder(name).joinpath(*module.split(".")[1:]).with_suffix(".py")
        if not file.exists():
            hint = f"install a build of {name} that has it: there is no `{file}`"
            raise Unavailable(f"`{python.executable}` has no `{module}`", hint)


def _lacking(python: Interpreter, needed: Sequence[str]) -> Unavailable:
    missing = [name for name in needed if python.packages[name] is None]
    *some, last = missing
    names, them = last, "it"
    if some:
        names, them = f"{', '.join(some)} and {last}", "all of them"
    pip = f"`{python.executable} -m pip install {' '.join(missing)}`"
    hint = f"{pip}, or name another Python: `--python PATH`"
    if (other := next(_pythons_with(needed), None)) is not None:
        hint = f"`--python {other}` has {them}"
    return Unavailable(f"`{python.executable}` lacks {names}", hint)


def _pythons_with(needed: Sequence[str]) -> Iterator[str]:
    """List the Pythons of this shell that have all these packages."""
    for text in _pythons_of_the_shell():
        with suppress(Unavailable):
            python = inspect_python(find_python(text), needed)
            if all(python.packages[name] for name in needed):
                yield text


def _pythons_of_the_shell() -> Iterator[str]:
    """List the active environments, and the Python on PATH."""
    active = (os.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX"))
    yield from filter(None, (*active, shutil.which("python"), shutil.which("python3")))


if __name__ == "__main__":
    answer(_answer_question(*sys.argv[1:]))
