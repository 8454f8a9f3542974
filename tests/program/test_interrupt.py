"""A Ctrl-C before there is anything to stop."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.running import ROOT

SLOW = """
import pathlib, time
pathlib.Path("imported").touch()
time.sleep(60)
"""


@pytest.mark.parametrize("argv", [[sys.executable, "-m", "zlaunch"], [f"{sys.prefix}/bin/zlaunch"]])
def test_a_ctrl_c_while_zlaunch_imports_ends_it_without_a_word(tmp_path: Path, argv: list[str]) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "typer.py").write_text(SLOW)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'slow'}:{ROOT}"}
    with subprocess.Popen(
        [*argv, "train", "--dry-run"], cwd=tmp_path, env=environment, stdout=-1, stderr=-1
    ) as program:
        while not (tmp_path / "imported").exists():
            assert program.poll() is None
            time.sleep(0.01)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=30)
    assert (program.returncode, out, err) == (130, b"", b"")
