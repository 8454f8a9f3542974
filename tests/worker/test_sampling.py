"""What a rank and its host use right now."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import ROOT

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
