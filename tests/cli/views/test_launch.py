import subprocess
import sys

import pytest

from tests.running import ROOT

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
