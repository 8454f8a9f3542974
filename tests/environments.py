"""Python environments as people have them, made of the packages that are installed here."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.running import ROOT
from tools import bare_python
from zlaunch.hosts.machine.interpreter import inspect_python

LIGHT = ("typer", "pydantic", "PyYAML", "psutil")
"""What `zlaunch config` and `zlaunch runs` need."""


def packages() -> Path:
    """The directory where torch is installed."""
    return inspect_python(None).folder("torch").parent


def python_with(names: Iterable[str], folder: Path) -> Path:
    """The Python of an environment that has these packages and what they need, and zlaunch."""
    python = bare_python.make(folder, list(names), "--without-pip")
    (site_of(folder) / "zlaunch.pth").write_text(f"{ROOT}\n")
    return python


def tool(folder: Path) -> Path:
    """An environment as of `pipx` or `uv tool`: zlaunch, and light packages alone."""
    python = bare_python.make(folder, LIGHT, "--without-pip")
    (site_of(folder) / "zlaunch").symlink_to(ROOT / "zlaunch")
    return python


def with_path_file(folder: Path) -> Path:
    """An environment that sees the packages of another one through a .pth file, but not zlaunch."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site_of(folder) / "packages.pth").write_text(f"{packages()}\n")
    return folder


def with_system_packages(folder: Path, base: Path) -> tuple[Path, dict[str, str]]:
    """An environment over packages outside of it, as over those of a vendor's container; and its variables.

    They are in the user's directory for packages, because a test cannot install into the system's.
    """
    options = ["--without-pip", "--system-site-packages"]
    subprocess.run([sys.executable, "-m", "venv", *options, folder], check=True)
    variables = {"PYTHONUSERBASE": str(base)}
    ask = "import site; print(site.getusersitepackages())"
    argv = [str(folder / "bin" / "python"), "-c", ask]
    said = subprocess.run(argv, env=variables, capture_output=True, text=True, check=True)
    user = Path(said.stdout.strip())
    user.mkdir(parents=True)
    (user / "packages.pth").write_text(f"{packages()}\n")
    return folder, variables


def site_of(folder: Path) -> Path:
    (site,) = folder.glob("lib/python*/site-packages")
    return site
