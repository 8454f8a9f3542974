"""Every command of docs/clusters.md, in its order."""

import re
from pathlib import Path

import pytest

from tests.running import ACTIVATED, ROOT, run

FIRST_LINES = (
    "#!/bin/bash",
    "#!/bin/bash",
    "apiVersion: jobset.x-k8s.io/v1alpha2",
    "ray job submit --no-wait",
)
PAGE = (ROOT / "docs" / "clusters.md").read_text("utf-8")
COMMANDS = re.findall(r"^    (zlaunch .*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("command", "first"), [*zip(COMMANDS, FIRST_LINES, strict=True)])
def test_every_command_of_the_page_writes_what_it_says(command: str, first: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    result = run("sh", "-c", command, cwd=tmp_path, env=ACTIVATED)
    assert (result.status, result.out.startswith(first)) == (0, True), (result.out, result.err)
