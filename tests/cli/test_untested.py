"""Every command whose answer depends on the installed packages says which it was not tested with."""

from pathlib import Path

import pytest

from tests.running import CONFIGS
from zlaunch.cli import program
from zlaunch.job.stack import TESTED

COMMANDS = {
    "validate": ["config", "validate", str(CONFIGS / "zero2.json")],
    "estimate": ["estimate", "Qwen/Qwen2.5-7B", "--on", "8xH100-80GB"],
    "plan": ["plan", "Qwen/Qwen2.5-7B", "--on", "8xH100-80GB"],
    "train": ["train", "script.py", "--dry-run", "--no-ask"],
}


@pytest.mark.parametrize("command", list(COMMANDS))
def test_packages_that_zlaunch_was_not_tested_with_are_named(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(TESTED, "transformers", ("90.0", "90.1"))
    for module in ("estimate", "plan"):  # what they say then is asked elsewhere
        monkeypatch.setattr(f"zlaunch.cli.{module}.report", lambda *_, **__: 0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("import os\nos.environ['ZLAUNCH_DS_CONFIG']\n")
    program(COMMANDS[command], standalone_mode=False)
    assert "zlaunch was not tested with transformers" in " ".join(capsys.readouterr().err.split())
