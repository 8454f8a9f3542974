"""Every command of docs/doctor.md, in its order, except the one that measures a drive."""

import re
from pathlib import Path

import pytest

from tests.cluster.bed import Bed
from tests.running import ACTIVATED, CONFIGS, ROOT, run

pytestmark = pytest.mark.hosts


def test_every_command_of_the_page_does_what_it_says(bed: Bed, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "ds_config.json").write_text((CONFIGS / "zero3_cpu.json").read_text())
    page = (ROOT / "docs" / "doctor.md").read_text("utf-8")
    commands = re.findall(r"^    (zlaunch .*)$", page, re.MULTILINE)
    assert len(commands) == 4
    programs = bed.environment()["PATH"]
    environment = {"PATH": f"{bed.programs}:{ACTIVATED['PATH']}:{programs}", "HF_HUB_OFFLINE": "1"}
    *quick, tune = commands
    assert tune == "zlaunch nvme tune /local_nvme"  # takes ten minutes: tests/program/test_nvme_tune.py
    for command in quick:
        result = run("sh", "-c", command, cwd=tmp_path, env=environment)
        assert result.status == 0, (command, result.out, result.err)
