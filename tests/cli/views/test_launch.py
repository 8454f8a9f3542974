import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.running import ROOT
from zlaunch.cli.views.launch import LaunchView
from zlaunch.diagnosis.outcome import Outcome
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.rundir.layout import RunDir
from zlaunch.runs.run import Run

PROGRAM = """
from zlaunch.cli.views.launch import LaunchView
view = LaunchView()
view.job_output(b"half a")
view.note("rank 0 listens")
view.note("attach now")
view.job_output(b" line\\n")
view.note("ended")
"""


@pytest.mark.parametrize(
    ("stderr", "out", "err"),
    [
        (subprocess.STDOUT, "half a\nrank 0 listens\nattach now\n line\nended\n", None),
        (subprocess.PIPE, "half a line\n", "rank 0 listens\nattach now\nended\n"),
    ],
)
def test_a_note_ends_a_line_of_the_job_only_where_both_are_one_stream(
    stderr: int, out: str, err: str | None
) -> None:
    argv = [sys.executable, "-c", PROGRAM]
    shown = subprocess.run(argv, stdout=subprocess.PIPE, stderr=stderr, text=True, check=True, cwd=ROOT)
    assert (shown.stdout, shown.stderr) == (out, err)


@pytest.mark.parametrize(("shown", "is_shown"), [((0,), True), ((0, 1), False), ((), False)])
def test_the_exception_of_the_rank_that_failed_first_follows_the_output_of_another(
    shown: tuple[int, ...], is_shown: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunDir(tmp_path)
    run.ranks.mkdir()
    run.rank_error(1).write_text('{"version": 1, "traceback": "Traceback: of rank 1\\n"}')
    view, plan = LaunchView(), SimpleNamespace(layout=run)
    view._shown_ranks = shown
    any_plan: Any = plan
    verdict = Verdict("script-raised", "train.py raised ValueError", 1, "w1", "backward", when="in step 3")
    view.ended(any_plan, Outcome("failed", 1, 1, verdict), 5.0, Run(tmp_path))
    told = capsys.readouterr().err
    assert ("Traceback: of rank 1" in told) == is_shown
    assert "rank 1 on w1, backward, in step 3" in told


def test_the_json_of_a_run_whose_directory_is_gone_says_how_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    view, plan = LaunchView(as_json=True), SimpleNamespace(layout=RunDir(tmp_path / "gone"))
    view.run = tmp_path / "gone"
    gone: Any = plan
    view.ended(gone, Outcome("finished", 0, 0), 5.0, Run(tmp_path / "gone"))
    view.print_json()
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["exit_status"], told["cause"]) == ("finished", 0, None)
