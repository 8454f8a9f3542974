"""The program that rehearses, without a rehearsal: its forks, results and failures."""

import io
import json
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.asking import LLAMA, forecast
from tests.running import ROOT
from zlaunch.estimate.forecast import Forecast
from zlaunch.estimate.forecast_cache import ForecastCache
from zlaunch.estimate.rehearsal.__main__ import _read_result, _Task
from zlaunch.estimate.rehearse import Rehearsed, Rehearser
from zlaunch.estimate.workload import Workload

ASKED = Workload(
    model=LLAMA,
    ds_config={"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}},
    world_size=8,
    ranks_per_host=8,
    seq_len=256,
)


def fake_program(folder: Path, body: str) -> str:
    """Write a shell script that is started in the place of Python."""
    file = folder / "program"
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return str(file)


def reasons(told: list[Rehearsed]) -> list[str | None]:
    return [one.why_not_rehearsed for one in told if isinstance(one, Forecast)]


FORK = """
import os, tempfile
from tests.estimate.rehearsal.test_program import ASKED
from zlaunch.estimate.rehearsal.__main__ import _fork, _Task
with tempfile.TemporaryDirectory() as checkpoints:
    pid = _fork(_Task(0, ASKED, None), open("/dev/full", "w"), "no reason")
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(status, os.path.exists(checkpoints), flush=True)
"""


def test_a_fork_that_cannot_even_say_what_went_wrong_deletes_no_checkpoints() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "1 True\n"


@pytest.mark.parametrize(
    ("status", "why"),
    [(0, "the result of the rehearsal is incomplete"), (-9, "the rehearsal ended with SIGKILL")],
)
def test_an_answer_that_is_cut_off_is_none(status: int, why: str) -> None:
    assert _read_result(io.StringIO('{"is_text": true}\n{"forecast": {"meth'), status)["failure"] == why


def test_an_answer_without_the_images_says_why_they_are_missing(tmp_path: Path) -> None:
    with_images = _Task(0, ASKED, tmp_path)
    without = with_images.next_task({"failure": "killed", "has_images": True})
    assert without is not None
    assert without.workload.images.count == 0
    told = {"forecast": {"late_error": None, "seconds": 1.0, "phases": ()}}
    resumed = without.next_task(told)
    assert resumed is not None
    assert [task.merge(told).get("failure") for task in (with_images, without, resumed)] == [
        None,
        *["killed"] * 2,
    ]


def test_what_was_rehearsed_only_in_part_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pydantic import TypeAdapter

    told = TypeAdapter(Forecast).dump_json(forecast(1.0)).decode()
    (tmp_path / "answers").write_text(
        f'{{"index": 0, "forecast": {told}}}\n{{"index": 1, "failure": "killed", "forecast": {told}}}\n'
    )
    monkeypatch.setattr(sys, "executable", fake_program(tmp_path, f"cat '{tmp_path}/answers'"))
    asked = [ASKED, replace(ASKED, rank=7)]
    cache = ForecastCache(tmp_path / "cache")
    with Rehearser(cache) as rehearser:
        assert rehearser(asked) == [forecast(1.0)] * 2
    assert [cache.find(one) is not None for one in asked] == [True, False]


def test_a_program_that_died_of_one_workload_did_not_fail_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = """read one; read two; echo '{"index": 0, "failure": "one cannot be"}'; kill -9 $$"""
    monkeypatch.setattr(sys, "executable", fake_program(tmp_path, answer))
    with Rehearser() as rehearser:
        told = rehearser([ASKED, replace(ASKED, rank=7)])
    assert reasons(told) == ["one cannot be", "the rehearsal process died"]


def test_what_was_expected_is_sent_once_and_answered_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [{"index": 1, "failure": "second"}, {"index": 0, "failure": "first"}]
    (tmp_path / "answers").write_text("".join(f"{json.dumps(one)}\n" for one in answers))
    answer = f"read one; read two; cat '{tmp_path}/answers'"
    monkeypatch.setattr(sys, "executable", fake_program(tmp_path, answer))
    later = replace(ASKED, seq_len=128)
    with Rehearser() as rehearser:
        rehearser.expect([later])
        assert [reasons(rehearser([asked])) for asked in (ASKED, later)] == [["first"], ["second"]]


def test_what_is_expected_and_never_asked_for_ends_with_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = """read one; echo '{"index": 0, "failure": "first"}'; exec sleep 60"""
    monkeypatch.setattr(sys, "executable", fake_program(tmp_path, answer))
    with Rehearser() as rehearser:
        rehearser.expect([replace(ASKED, seq_len=128)])
        assert reasons(rehearser([ASKED])) == ["first"]
        assert (program := rehearser._program) is not None
    assert program._process.returncode == -signal.SIGKILL


def broken_torch(folder: Path, why: str) -> Path:
    """Make a folder in which torch cannot be imported."""
    folder.mkdir()
    (folder / "torch.py").write_text(f"raise ImportError({why!r})\n")
    return folder


def test_packages_that_cannot_be_imported_are_the_reason_for_every_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of PYTHONPATH, not those of the working directory."""
    monkeypatch.setenv("PYTHONPATH", str(broken_torch(tmp_path / "installed", "libcudart.so.12 is missing")))
    monkeypatch.chdir(broken_torch(tmp_path / "here", "this is the working directory"))
    with Rehearser() as rehearser:
        told = rehearser([ASKED, replace(ASKED, rank=7)])
    assert reasons(told) == ["ImportError: libcudart.so.12 is missing"] * 2


@pytest.mark.parametrize("ends", ["exit", "exec sleep 60"], ids=["dies", "is killed"])
def test_temporary_files_of_the_program_are_gone_with_it(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    body = f"""touch "$TMPDIR/left"; echo "$TMPDIR" > '{tmp_path}/where'; echo '{{"index": 0}}'; {ends}"""
    monkeypatch.setattr(sys, "executable", fake_program(tmp_path, body))
    with Rehearser() as rehearser:
        next(rehearser._ask([ASKED, replace(ASKED, rank=7)]))
        folder = Path((tmp_path / "where").read_text().strip())
        assert folder.parent == tmp_path
        assert (folder / "left").exists()
    assert not folder.exists()
