"""Every command of the pages about several hosts works as it is printed."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from tests.cluster.bed import Bed
from tests.cluster.ways import LOOP
from tests.running import ROOT
from zlaunch.hosts.ports import free_port

pytestmark = pytest.mark.hosts

PAGES = ("clusters.md", "doctor.md")
DS_CONFIG = '{"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}'


def blocks() -> Iterator[str]:
    """The blocks of commands; the lines of one are typed on different hosts."""
    for page in PAGES:
        text = re.sub(
            r"^```.*?^```$", "", (ROOT / "docs" / page).read_text("utf-8"), flags=re.MULTILINE | re.DOTALL
        )
        lines = text.splitlines()
        for is_block, block in groupby(lines, lambda line: line.startswith("    ")):
            if is_block:
                yield "\n".join(line.strip() for line in block)


@pytest.mark.parametrize("block", [*blocks()])
def test_a_command_works_as_it_is_printed(block: str, bed: Bed, tmp_path: Path) -> None:
    shutil.copy(LOOP, tmp_path / "train.py")
    (tmp_path / "ds_config.json").write_text(DS_CONFIG)
    (drive := tmp_path / "drive").mkdir()
    here = re.sub(r"\bnode1\b", "127.0.0.1", block.replace("/local_nvme", str(drive)))
    environment = {**bed.environment(), "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    del environment["GLOO_SOCKET_IFNAME"]
    if "MASTER_ADDR" in block:
        environment["MASTER_PORT"] = str(free_port())
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(
            ["sh", "-c", line], cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True
        )
        for line in here.splitlines()
    ]
    said = [one.communicate(timeout=300) for one in started]
    assert [one.returncode for one in started] == [0] * len(started), said


def test_there_are_blocks_to_try() -> None:
    found = [*blocks()]
    assert len(found) >= 9
    assert all("zlaunch " in line for block in found for line in block.splitlines())
