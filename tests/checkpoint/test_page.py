"""Every command of docs/checkpoints.md, in its order."""

import re
import shutil
from pathlib import Path

import pytest

from tests.checkpoint.trainers import trainers
from tests.running import ACTIVATED, RECIPE, ROOT, run

pytestmark = pytest.mark.job

STATUS = {"can-resume": 65}
"""Command → its exit status on the page, if that is not 0."""


@pytest.mark.full
def test_every_command_of_the_page_does_what_it_says(saved: Path, tmp_path: Path) -> None:
    checkpoint = trainers(tmp_path / "outputs", 500, saved / "zero2")
    shutil.copytree(saved / "adapters" / "lora1-alone", tmp_path / "outputs" / "lora")
    shutil.copytree(saved / "adapters" / "base", tmp_path / "base")
    (tmp_path / "my-config").mkdir()
    (tmp_path / "my-config" / "config.json").write_text('{"architectures": ["Own"]}')
    shutil.copy(RECIPE, tmp_path / "train.py")
    commands = re.findall(
        r"^    (zlaunch .*)$", (ROOT / "docs" / "checkpoints.md").read_text("utf-8"), re.MULTILINE
    )
    assert len(commands) > 6
    for command in commands:
        result = run("sh", "-c", command, cwd=tmp_path, env=ACTIVATED)
        assert result.status == STATUS.get(command.split()[2], 0), (command, result.out, result.err)
    assert (tmp_path / "my-model" / "model.safetensors").is_file()
    assert (tmp_path / "with-config" / "config.json").is_file()
    assert (checkpoint / "global_step3_universal" / "zero").is_dir()
