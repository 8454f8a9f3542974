"""Environments of their own, made in a tenth of a second of packages that are installed already."""

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement

LIGHT = ("typer", "pydantic", "PyYAML", "psutil")
"""What `zlaunch config` and `zlaunch runs` need."""


def environment(folder: Path) -> Path:
    """Make an empty virtual environment without pip; return its directory of packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return next(folder.glob("lib/python*/site-packages"))


def link_packages(names: Iterable[str], site_packages: Path) -> None:
    """Put packages and what they need into an environment, as links to those that are installed here."""
    for name in with_requirements(names):
        distribution = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            (site_packages / top).symlink_to(str(distribution.locate_file(top)))


def with_requirements(names: Iterable[str]) -> set[str]:
    """Add all packages that these need on this machine."""
    found: set[str] = set()
    left = [*names]
    while left:
        if (name := left.pop()) not in found:
            found.add(name)
            left += required_by(name)
    return found


def required_by(name: str) -> Iterator[str]:
    for line in importlib.metadata.requires(name) or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name
