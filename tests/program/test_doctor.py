"""`zlaunch doctor` on this machine, as a person runs it."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hosts.machine.test_resources import FAKE_NVML
from tests.running import ROOT, Result, on_terminal, zlaunch
from zlaunch.hosts.machine.build_lock import locks_by_file
from zlaunch.hosts.machine.interpreter import inspect_python
from zlaunch.hosts.machine.probe import cuda_of_torch

OFFLINE = {"HF_HUB_OFFLINE": "1"}
SMI = """#!/bin/sh
case "$*" in
*topo*) printf '\\tGPU0\\tGPU1\\nGPU0\\t X \\tNV18\\nGPU1\\tNV18\\t X \\n' ;;
*) echo '| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4     |' ;;
esac
"""


def rows(result: Result) -> dict[str, dict[str, Any]]:
    (host,) = json.loads(result.out)["hosts"].values()
    return {row["name"]: row for row in host["rows"]}


def test_this_machine_is_examined_without_a_network(tmp_path: Path) -> None:
    result = zlaunch("doctor", cwd=tmp_path, env=OFFLINE)
    assert result.status == 0, result.out
    for name in ("Python", "torch", "deepspeed", "compilers", "memory", "/dev/shm", "disk: this directory"):
        assert f" {name} " in result.out


def test_the_ops_of_the_ds_config_at_hand_are_looked_for(tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").write_text((ROOT / "configs" / "zero3_cpu.json").read_text())
    found = rows(
        zlaunch("doctor", "--json", cwd=tmp_path, env={**OFFLINE, "TORCH_EXTENSIONS_DIR": str(tmp_path)})
    )
    assert found["ds_config"]["value"] == "ds_config.json"
    assert found["op cpu_adam"]["value"].startswith("not compiled yet")


def test_a_lock_that_a_killed_build_has_left_is_found_where_torch_would_wait_for_it(tmp_path: Path) -> None:
    (tmp_path / "cpu_adam").mkdir()
    (lock := tmp_path / "cpu_adam" / "lock").touch()
    words = ["--ds-config", ROOT / "configs" / "zero3_cpu.json", "--json"]
    found = rows(
        zlaunch("doctor", *words, cwd=tmp_path, env={**OFFLINE, "TORCH_EXTENSIONS_DIR": str(tmp_path)})
    )
    expected: tuple[str, str | None] = ("note", None)
    if locks_by_file(inspect_python(None)):
        expected = ("warning", f"`rm {lock}`")
    assert (found["op cpu_adam"]["status"], found["op cpu_adam"]["hint"]) == expected


def test_the_ds_config_of_a_job_file_is_the_one_at_hand(tmp_path: Path) -> None:
    (tmp_path / "zlaunch.yaml").write_text("ds_config: mine.json\n")
    (tmp_path / "mine.json").write_text('{"zero_optimization": {"stage": 9}}')
    result = zlaunch("doctor", "--json", cwd=tmp_path, env=OFFLINE)
    assert (result.status, rows(result)["ds_config"]["status"]) == (69, "error")


NO_OPS = {**OFFLINE, "DS_ACCELERATOR": "cpu"}


def ops_for(folder: Path, job_file: str) -> tuple[str, set[str]]:
    """The config at hand with this zlaunch.yaml, and the ops that it needs."""
    (folder / "zlaunch.yaml").write_text(job_file)
    found = rows(zlaunch("doctor", "--json", cwd=folder, env={**NO_OPS, "TORCH_EXTENSIONS_DIR": str(folder)}))
    return found["ds_config"]["value"], {name for name in found if name.startswith("op ")}


def test_stage_and_offload_of_a_job_file_decide_which_ops_are_looked_for(tmp_path: Path) -> None:
    assert ops_for(tmp_path, "stage: 3\noffload: nvme\nnvme: /tmp\n") == (
        "zlaunch.yaml",
        {"op deepspeed_shm_comm", "op cpu_adam", "op async_io"},
    )
    (tmp_path / "mine.json").write_text('{"zero_optimization": {"stage": 2}}')
    assert ops_for(tmp_path, "ds_config: mine.json\noffload: {optimizer: cpu}\n") == (
        "mine.json and zlaunch.yaml",
        {"op deepspeed_shm_comm", "op cpu_adam"},
    )
    assert ops_for(tmp_path, "set: {optimizer: {type: Adam}}\n")[1] == {
        "op deepspeed_shm_comm",
        "op fused_adam",
    }


def test_a_mistake_in_a_job_file_is_a_row_and_the_machine_is_examined(tmp_path: Path) -> None:
    (tmp_path / "zlaunch.yaml").write_text("stage: 7\n")
    result = zlaunch("doctor", "--json", cwd=tmp_path, env=OFFLINE)
    found = rows(result)
    assert (result.status, found["torch"]["status"]) == (69, "ok")
    assert found["ds_config"]["value"].startswith("zlaunch.yaml: expected 0, 1, 2, 3 or auto, not `7`")
    assert found["ds_config"]["hint"] == "`zlaunch train --dry-run`"


def test_a_file_that_a_job_file_misses_is_a_row_and_the_machine_is_examined(tmp_path: Path) -> None:
    (tmp_path / "zlaunch.yaml").write_text("ds_config: gone.json\n")
    result = zlaunch("doctor", "--json", cwd=tmp_path, env=OFFLINE)
    found = rows(result)
    assert (result.status, found["torch"]["status"]) == (69, "ok")
    assert found["ds_config"]["value"].startswith("zlaunch.yaml: cannot read the ds_config `gone.json`")


@pytest.mark.job
def test_an_all_reduce_on_one_host_is_measured_beside_the_speed_of_its_memory(tmp_path: Path) -> None:
    found = rows(zlaunch("doctor", "--collective", "--json", cwd=tmp_path, env=NO_OPS))["all-reduce"]
    assert found["status"] == "ok", found
    rate, small, copy = re.findall(r"([\d.]+) (?:GB/s|[mµ]?s for)", found["value"])
    assert "(gloo, 2 ranks)" in found["value"]
    assert 0 < float(rate) < float(copy), found["value"]
    assert float(small) > 0


def test_gpus_that_this_torch_cannot_use_are_an_error_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a driver that is a fake, and a torch that is built for the CPU."""
    if cuda_of_torch(inspect_python(None)) is not None:
        pytest.skip("torch here is built for CUDA")
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    environment = with_gpus(tmp_path)
    result = zlaunch("doctor", "--json", cwd=tmp_path, env=environment)
    assert result.status == 69
    assert "2 GPUs, but torch" in rows(result)["GPUs"]["value"]


def with_gpus(folder: Path) -> dict[str, str]:
    """Give a program a driver that reports two GPUs."""
    (folder / "pynvml.py").write_text(FAKE_NVML.replace("PID", "1"))
    (programs := folder / "bin").mkdir()
    (programs / "nvidia-smi").write_text(SMI)
    (programs / "nvidia-smi").chmod(0o755)
    return {**OFFLINE, "PYTHONPATH": f"{folder}:{ROOT}", "PATH": f"{programs}:{os.environ['PATH']}"}


def test_gpus_are_shown_with_who_uses_them_and_how_they_are_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver and torch are fakes: not verified on a GPU."""
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    environment = with_gpus(tmp_path)
    (torch := tmp_path / "torch").mkdir()
    (torch / "version.py").write_text("cuda = '12.8'\n")
    (torch / "__init__.py").write_text(
        "class cuda:\n    device_count = staticmethod(lambda: 2)\n"
        "    can_device_access_peer = staticmethod(lambda one, other: True)\n"
    )
    (tmp_path / "nvidia_nccl_cu12-2.27.3.dist-info").mkdir()
    found = rows(zlaunch("doctor", "--json", cwd=tmp_path, env=environment))
    assert "in use: " in found["GPU 0"]["value"]
    assert "(pid 1) uses " in found["GPU 0"]["value"]
    assert found["driver"]["value"] == "550.54.15, up to CUDA 12.4"
    assert found["torch's CUDA"]["value"] == "12.8"
    assert found["NCCL"]["value"] == "2.27.3"
    assert found["GPU peer access"]["value"] == "between all 2 GPUs"
    assert found["NVLink"]["value"] == "NVLink between all GPUs"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--hosts", "a", "--slurm"], 2, "`--hosts` and `--slurm` both name the hosts"),
        (["--hosts", "a,,b"], 2, "a host has no name"),
        (["--hosts", "-oProxyCommand=x"], 2, "--hosts"),
        (["--hostfile", "none"], 66, "cannot read the hostfile `none`"),
        (["none.py"], 66, "there is no script `none.py`"),
        (["--ds-config", "none.json"], 66, "cannot read the ds_config `none.json`"),
        (["--slurm"], 69, "`salloc --nodes=2 zlaunch doctor --slurm`"),
    ],
)
def test_what_cannot_be_asked_is_refused(words: list[str], status: int, said: str, tmp_path: Path) -> None:
    outside = {**OFFLINE, "SLURM_JOB_NODELIST": "", "SLURM_NODELIST": ""}
    result = zlaunch("doctor", *words, cwd=tmp_path, env=outside)
    assert (result.status, said in " ".join(result.err.split())) == (status, True), result.err


def test_a_terminal_of_80_columns_is_exceeded_only_by_long_paths(tmp_path: Path) -> None:
    result = on_terminal(
        "sh", "-c", f"stty cols 80; HF_HUB_OFFLINE=1 {sys.executable} -m zlaunch doctor", cwd=tmp_path
    )
    shown = [line.split("\r\x1b[K")[-1] for line in result.out.splitlines()]
    assert any(" torch " in line for line in shown)
    assert [line for line in shown if len(line) > 80 and max(map(len, line.split())) < 40] == []
