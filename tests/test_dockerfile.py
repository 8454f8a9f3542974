"""What can be checked of the image without a Docker daemon; `make check` runs hadolint."""

import re
import shlex
import sys

import pytest

from tests.program.test_pre_commit import INSTALLED_BY_PIP
from tests.running import ROOT, run

DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_the_build_gets_what_pip_needs_and_nothing_else() -> None:
    """pre-commit installs zlaunch from the same files, in its own test."""
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == {*INSTALLED_BY_PIP}
    assert ignored[0] == "*"


def test_the_first_layer_of_packages_has_all_dependencies_and_no_sources() -> None:
    tomllib = pytest.importorskip("tomllib")
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    before = DOCKERFILE.partition("COPY . .")[0]
    (command,) = re.findall(r"python (-c .*?) \\\n +> dependencies\.txt", before)
    assert run(sys.executable, *shlex.split(command), cwd=ROOT).out.splitlines() == dependencies
    assert "pip install --no-cache-dir -c constraints.txt -r dependencies.txt" in before
