"""The profile of some steps, recorded by torch itself."""

import gzip
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zlaunch.rundir.layout import RunDir
from zlaunch.worker.hook.step_profiler import StepProfiler

pytestmark = pytest.mark.program

PROGRAM = """
import sys, time
from pathlib import Path
from zlaunch.rundir.layout import RunDir
from zlaunch.worker.hook.step_profiler import profiler_of
import torch
profiler = profiler_of(RunDir(Path(sys.argv[1])), 1, sys.argv[2])
assert profiler_of(RunDir(Path(sys.argv[1])), 1, None) is None
for step in range(8):
    profiler.forward(step)
    torch.ones(64, 64) @ torch.ones(64, 64)
    if step == int(sys.argv[3]):
        print("there", flush=True)
        time.sleep(60)
    profiler.stepped(step + 1)
"""


def profiled(root: Path, steps: str, sleeps_in: int = -1) -> tuple[int, dict[str, Any], list[str]]:
    """Return the exit status, the record, and the names of the operations in the trace."""
    (root / "ranks").mkdir()
    argv = [sys.executable, "-c", PROGRAM, str(root), steps, str(sleeps_in)]
    with (
        (root / "stderr").open("w") as stderr,
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=stderr, text=True) as process,
    ):
        assert process.stdout is not None
        if sleeps_in >= 0:
            process.stdout.readline()
            process.send_signal(signal.SIGTERM)
    run_dir = RunDir(root)
    record = json.loads(run_dir.rank_operations(1).read_text())
    trace = json.loads(gzip.decompress(run_dir.rank_trace(1).read_bytes()))
    return process.returncode, record, [event.get("name", "") for event in trace["traceEvents"]]


def folders(parent: Path, *steps: str) -> Iterator[tuple[Path, str]]:
    for name in steps:
        (parent / name).mkdir()
        yield parent / name, name


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def whole(root: Path) -> tuple[int, dict[str, Any], list[str]]:
    return profiled(root, "3-5")


def test_the_steps_that_are_asked_for_are_recorded(whole: tuple[int, dict[str, Any], list[str]]) -> None:
    status, record, names = whole
    assert (status, record["first"], record["last"]) == (0, 3, 5)
    assert names.count("aten::mm") == 3


@pytest.mark.usefixtures("whole")
def test_the_profiler_itself_prints_nothing(root: Path) -> None:
    assert (root / "stderr").read_text() == ""


def test_numbers_are_those_of_one_step(whole: tuple[int, dict[str, Any], list[str]]) -> None:
    _, record, _ = whole
    calls = {row["name"]: row["calls"] for row in record["operations"]}
    assert calls["aten::mm"] == 1
    assert record["seconds"] > 0


def test_a_script_that_is_terminated_leaves_a_whole_trace_and_dies_of_the_signal(tmp_path: Path) -> None:
    status, record, names = profiled(tmp_path, "3-100", sleeps_in=4)
    assert status == -signal.SIGTERM
    assert (record["first"], record["last"], record["whole_steps"]) == (3, 4, 2)
    assert names.count("aten::mm") == 3


def test_a_script_that_is_terminated_in_the_first_step_has_recorded_no_whole_one(tmp_path: Path) -> None:
    _, record, _ = profiled(tmp_path, "3-5", sleeps_in=2)
    assert (record["first"], record["whole_steps"]) == (3, 0)


def test_the_step_before_is_timed_only_if_its_begin_was_seen(tmp_path: Path) -> None:
    usual = [profiled(folder, steps)[1]["usual_seconds"] for folder, steps in folders(tmp_path, "2-2", "3-3")]
    assert usual[0] == 0
    assert 0 < usual[1] < 60


class Noted(StepProfiler):
    """A profiler that only notes when it begins."""

    begun: int | None = None

    def _begin(self) -> None:
        self.begun = self._begun_after + 1


@pytest.mark.parametrize(("resumed", "begun"), [(0, 10), (8, 10), (10, 11), (11, 12), (12, None), (20, None)])
def test_a_script_that_resumes_profiles_only_the_steps_that_are_asked_for(
    tmp_path: Path, resumed: int, begun: int | None
) -> None:
    profiler = Noted(RunDir(tmp_path), 0, 10, 12)
    for step in range(resumed, 25):
        if profiler.begun is None:
            profiler.forward(step)
            profiler.stepped(step + 1)
    assert profiler.begun == begun
