"""Every command of docs/clusters.md works as it is printed."""

import re
import shutil
import subprocess
from itertools import groupby
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.cluster.ways import LOOP
from tests.running import ACTIVATED, ROOT
from zlaunch.hosts.machine.ports import free_port

pytestmark = pytest.mark.job


def blocks() -> list[list[str]]:
    """The blocks of commands; the lines of one are typed on different hosts."""
    lines = (ROOT / "docs" / "clusters.md").read_text("utf-8").splitlines()
    grouped = groupby(lines, lambda line: line.startswith("    "))
    return [[line.strip() for line in block] for is_block, block in grouped if is_block]


def marked() -> list[ParameterSet]:
    """Lines typed on several hosts train, as in `test_losses`."""
    return [
        pytest.param(block, id=" and ".join(block), marks=pytest.mark.full if len(block) > 1 else ())
        for block in blocks()
    ]


@pytest.mark.parametrize("block", marked())
def test_a_command_works_as_it_is_printed(block: list[str], tmp_path: Path) -> None:
    shutil.copy(LOOP, tmp_path / "train.py")
    environment = {**ACTIVATED, "HOME": str(Path.home()), "DS_ACCELERATOR": "cpu"}
    if len(block) > 1:
        environment["MASTER_PORT"] = str(free_port())
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(
            ["sh", "-c", re.sub(r"\bnode1\b", "127.0.0.1", line)],
            cwd=tmp_path,
            env=environment,
            stdout=pipe,
            stderr=pipe,
            text=True,
        )
        for line in block
    ]
    said = [one.communicate(timeout=300) for one in started]
    assert [one.returncode for one in started] == [0] * len(block), said


def test_the_blocks_are_found() -> None:
    found = blocks()
    assert [len(block) for block in found] == [2, 1, 1, 1, 1]
    assert all("zlaunch train train.py " in line for block in found for line in block)
