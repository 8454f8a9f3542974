"""Who asked a run to stop."""

import signal
from pathlib import Path

import pytest

from zlaunch.rundir.control import (
    COMMAND,
    COORDINATOR,
    MEASURE_COMMAND,
    read_stop,
    stopping_command,
    write_stop,
)
from zlaunch.rundir.layout import RunDir


@pytest.mark.parametrize(
    ("asker", "command"),
    [(COMMAND, COMMAND), (MEASURE_COMMAND, MEASURE_COMMAND), (COORDINATOR, None), ("zlaunch", None)],
)
def test_a_run_knows_the_command_that_stopped_it(asker: str, command: str | None, tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    write_stop(run_dir, signal.SIGTERM, asker)
    assert (read_stop(run_dir), stopping_command(run_dir)) == (signal.SIGTERM, command)


def test_a_run_that_nobody_stopped_knows_no_command(tmp_path: Path) -> None:
    assert stopping_command(RunDir(tmp_path)) is None
