"""No command shows a secret of a poisoned environment, command line or config; tests/cli/views has the law of views."""

import os
from pathlib import Path

import pytest

from tests.running import zlaunch

POISONED = {
    "HF_ENDPOINT": "https://me:sw0rdfish99@hub.invalid",
    "HF_HUB_OFFLINE": "1",
    "MY_TOKEN": "tuna88fish",
}
SHOWN = {
    "doctor": ("doctor",),
    "doctor as JSON": ("doctor", "--json"),
    "plan": ("train", "script.py", "--dry-run"),
    "plan as JSON": ("train", "script.py", "--dry-run", "--json"),
    "sbatch script": ("train", "script.py", "--submit", "slurm", "--dry-run"),
    "sbatch script as JSON": ("train", "script.py", "--submit", "slurm", "--dry-run", "--json"),
    "commands to type": ("train", "script.py", "--hosts", "a:1,b:1", "--no-ssh"),
}


@pytest.mark.parametrize("command", list(SHOWN))
def test_a_poisoned_environment_command_and_config_are_shown_without_secrets(
    tmp_path: Path, command: str
) -> None:
    (tmp_path / "script.py").write_text("import os\nos.environ['ZLAUNCH_DS_CONFIG']\n")
    (tmp_path / "ds.json").write_text('{"comet": {"api_key": "perch77fish"}, "train_batch_size": 2}')
    words = list(SHOWN[command])
    if words[0] == "train":
        words += ["--ds-config", "ds.json", "--env", "MY_TOKEN", "--no-ask", "--"]
        words += ["--hub_token", "carp66fish", "--header=Authorization: Bearer trout55fish"]
    result = zlaunch(*words, cwd=tmp_path, env={**os.environ, **POISONED})
    assert result.out
    assert "fish" not in result.out + result.err
