"""zlaunch as a pre-commit hook of another repository."""

import os
import sys
from pathlib import Path

import pytest

from tests.running import ROOT, Result, run

BIN = Path(sys.executable).parent
PLAIN = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.com",
}


def hook(tmp_path: Path, text: str) -> Result:
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "ds_config.json").write_text(text)
    env = {
        **PLAIN,
        "PRE_COMMIT_HOME": str(tmp_path / "cache"),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }
    run("git", "init", "--quiet", ".", cwd=folder)
    run("git", "add", ".", cwd=folder)
    wanted = ("try-repo", ROOT, "zlaunch-config-validate", "--files", "ds_config.json")
    return run(BIN / "pre-commit", *wanted, cwd=folder, env=env)


@pytest.mark.parametrize(
    ("text", "status"),
    [('{"train_batch_size": 8}', 0), ('{"train_batch_size": 8, "zero_optimisation": {}}', 1)],
)
def test_a_commit_passes_exactly_if_its_ds_configs_do(tmp_path: Path, text: str, status: int) -> None:
    assert hook(tmp_path, text).status == status
