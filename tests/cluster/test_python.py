"""`python=` in a hostfile: a host whose ranks use an interpreter of its own."""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.cluster.bed import NAMES, Bed
from tests.cluster.test_doctor import rows
from tests.running import ROOT, the_run, zlaunch
from zlaunch.hosts.machine.interpreter import inspect_python

pytestmark = pytest.mark.hosts

SHOW = """import os, sys
import deepspeed, torch
print("rank", os.environ["RANK"], "uses", sys.executable, os.environ["PATH"], flush=True)
"""


def an_environment(folder: Path, *paths: str) -> Path:
    """Make a virtual environment that finds packages in these directories, and return its Python."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "elsewhere.pth").write_text("\n".join(paths))
    return folder / "bin" / "python"


def with_packages(folder: Path) -> Path:
    """Make an environment with all packages of this one, and zlaunch."""
    return an_environment(folder, *(path for path in sys.path if path.endswith("site-packages")), str(ROOT))


def hostfile(folder: Path, python: Path) -> Path:
    file = folder / "hosts"
    file.write_text(f"{NAMES[0]} slots=1\n{NAMES[1]} slots=1 python={python}\n")
    return file


def test_a_host_is_surveyed_and_trains_with_its_own_python(bed: Bed, tmp_path: Path) -> None:
    own = with_packages(tmp_path / "own")
    (tmp_path / "show.py").write_text(SHOW)
    flags = ["--hostfile", hostfile(tmp_path, own), "--launcher", "torchrun"]
    result = zlaunch("train", "show.py", *flags, cwd=tmp_path, env=bed.environment())
    assert result.status == 0, result.err
    logs = the_run(tmp_path) / "logs"
    said = [(logs / f"rank-{rank}.log").read_text().split() for rank in (0, 1)]
    assert said[0][3] == sys.executable
    login = [str(bed.programs / "ssh"), NAMES[1], "sh -c 'echo $PATH'"]
    path = subprocess.run(login, capture_output=True, text=True, check=True).stdout.strip()
    programs = inspect_python(own).programs
    assert said[1][3:] == [str(own), os.pathsep.join([*programs, path])]
    nodes = json.loads((the_run(tmp_path) / "job.json").read_text())["nodes"]
    assert nodes[1]["argv"][0] == str(own)


@pytest.mark.full
def test_an_all_reduce_uses_the_python_of_each_host(bed: Bed, tmp_path: Path) -> None:
    flags = ["--hostfile", hostfile(tmp_path, with_packages(tmp_path / "own")), "--collective", "--json"]
    result = zlaunch("doctor", *flags, cwd=tmp_path, env=bed.environment())
    assert " GB/s per rank, " in rows(result)[NAMES[0]]["all-reduce"]["value"], result.out


def test_a_python_without_zlaunch_is_refused_with_its_host(bed: Bed, tmp_path: Path) -> None:
    bare = an_environment(tmp_path / "bare")
    (tmp_path / "show.py").write_text(SHOW)
    flags = ["--hostfile", hostfile(tmp_path, bare)]
    result = zlaunch("train", "show.py", *flags, cwd=tmp_path, env=bed.environment())
    said = " ".join(result.err.split())
    assert (result.status, f"{NAMES[1]}: cannot run zlaunch with {bare}: " in said) == (69, True), result.err
    assert "No module named" in said
    assert NAMES[0] not in said


@pytest.mark.full
def test_the_python_of_a_host_is_kept_when_its_run_is_repeated(bed: Bed, tmp_path: Path) -> None:
    own = with_packages(tmp_path / "own")
    (tmp_path / "show.py").write_text(SHOW)
    flags = ["--hostfile", hostfile(tmp_path, own), "--run-dir", "runs/a"]
    first = zlaunch("train", "show.py", *flags, cwd=tmp_path, env=bed.environment())
    assert first.status == 0, first.err
    again = zlaunch("runs", "rerun", "a", "--run-dir", "runs/b", cwd=tmp_path, env=bed.environment())
    assert again.status == 0, again.err
    assert f"uses {own}" in (tmp_path / "runs" / "b" / "logs" / "rank-1.log").read_text()
