"""A Ctrl-C before there is anything to stop."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.running import ROOT, Program, zlaunch

SLOW = """
import pathlib, time
pathlib.Path("imported").touch()
time.sleep(60)
"""
SWALLOWS = """
import pathlib, time
pathlib.Path("imported").touch()
try:
    time.sleep(60)
except KeyboardInterrupt:
    raise ValueError("as pydantic does while it builds a class")
"""


@pytest.mark.parametrize(
    ("argv", "module"),
    [
        ([sys.executable, "-m", "zlaunch"], SLOW),
        ([f"{sys.prefix}/bin/zlaunch"], SLOW),
        ([f"{sys.prefix}/bin/zlaunch"], SWALLOWS),
    ],
)
def test_a_ctrl_c_while_zlaunch_imports_ends_it_without_a_word(
    tmp_path: Path, argv: list[str], module: str
) -> None:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "typer.py").write_text(module)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'slow'}:{ROOT}"}
    with Program[bytes](
        [*argv, "train", "--dry-run"], cwd=tmp_path, env=environment, stdout=-1, stderr=-1
    ) as program:
        while not (tmp_path / "imported").exists():
            assert program.poll() is None
            time.sleep(0.01)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=30)
    assert (program.returncode, out, err) == (130, b"", b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_launcher_starts_stops_a_run_that_has_its_directory(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The run directory is written when zlaunch asks git for the state of the sources."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(f"#!/bin/sh\nkill -{int(number)} $PPID\nexit 1\n")
    (tmp_path / "bin" / "git").chmod(0o755)
    (tmp_path / "train.py").write_text("print('trains')\n")
    path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    done = zlaunch("train", "train.py", "--no-ask", "--run-dir", "r", cwd=tmp_path, env={"PATH": path})
    ending = json.loads((tmp_path / "r" / "how-it-ended.json").read_text())
    assert (done.status, ending["how"], ending["exit_status"]) == (128 + number, "stopped", 128 + number)
    assert not list((tmp_path / "r" / "logs").glob("rank-*"))
