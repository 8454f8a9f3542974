"""What a rank and its host use right now."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.running import ROOT, Program
from zlaunch.hosts.machine.probe import oom_kills_in_group
from zlaunch.worker.sampling import is_compiling

LOST = """
class NVMLError(Exception):
    pass

def nvmlInit(): pass
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetMemoryInfo(handle): raise NVMLError("GPU is lost")
"""


@pytest.mark.parametrize(
    "pynvml", [LOST, "raise ModuleNotFoundError(name='pynvml')"], ids=["lost", "not installed"]
)
def test_nothing_is_said_of_a_gpu_that_cannot_be_asked(pynvml: str, tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(pynvml)
    program = "from zlaunch.worker.sampling import GpuSampler; print(GpuSampler(None, 0).sample())"
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "None\n"


def has_compiled(folder: Path, name: str, program: str) -> bool:
    """Run a program of a name below this process, and look for a compiler there for a while."""
    shutil.copy(shutil.which("dash") or "/bin/sh", folder / name)
    with Program([folder / name, "-c", program]) as child:
        try:
            while "sleep" in program and psutil.Process(child.pid).status() != psutil.STATUS_SLEEPING:
                time.sleep(0.02)  # it runs until it has started to wait
            until = time.monotonic() + 1
            found = [is_compiling(psutil.Process(os.getpid()))]
            while time.monotonic() < until and not any(found):
                time.sleep(0.02)
                found.append(is_compiling(psutil.Process(os.getpid())))
            return any(found)
        finally:
            child.kill()


@pytest.mark.parametrize(
    ("name", "program", "is_found"),
    [
        ("cc1plus", "while :; do :; done", True),
        ("cc1plus", "sleep 9; :", False),
        ("compute", "while :; do :; done", False),
        ("python", "while :; do :; done; : torch/_inductor/compile_worker/__main__.py", True),
    ],
)
def test_a_compiler_counts_while_it_computes(name: str, program: str, is_found: bool, tmp_path: Path) -> None:
    assert has_compiled(tmp_path, name, program) is is_found


@pytest.mark.parametrize(
    ("group", "mounted", "file", "kills"),
    [
        ("0::/job", "/ {top} rw - cgroup2 none rw", "memory.events", 3),
        ("4:memory:/job", "/ {top} rw - cgroup none rw,memory", "memory.oom_control", 3),
        ("4:cpu,memory:/", "/ {top} rw - cgroup none rw,cpu,memory", "memory.oom_control", None),
    ],
)
def test_kills_are_counted_in_the_control_group_of_the_job_and_not_in_that_of_all_processes(
    group: str, mounted: str, file: str, kills: int | None, tmp_path: Path
) -> None:
    top = tmp_path / "top"
    (folder := top / group.rpartition("/")[2]).mkdir(parents=True)
    (folder / file).write_text("low 0\noom_kill 3\n")
    (tmp_path / "cgroup").write_text(f"{group}\n")
    (tmp_path / "mountinfo").write_text(f"30 23 0:26 {mounted.format(top=top)}\n")
    assert oom_kills_in_group(tmp_path) == kills
