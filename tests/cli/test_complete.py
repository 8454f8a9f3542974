"""What a shell completes, asked as bash asks."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.running import ROOT
from zlaunch.cli import program

Completed = Callable[[str], list[str]]
ASK = 'import sys, zlaunch.cli\ntry: zlaunch.cli.program(prog_name="zlaunch")\nfinally: print("torch" in sys.modules)'


@pytest.fixture
def completed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Completed:
    def ask(words: str) -> list[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("_ZLAUNCH_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        with pytest.raises(SystemExit):
            program(prog_name="zlaunch")
        return capsys.readouterr().out.split()

    return ask


def put_run(folder: Path, name: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "job.json").write_text("{}")


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        ("zlaunch runs show 2026", ["20260102-b", "20260101-a"]),
        ("zlaunch runs why lat", ["latest"]),
        ("zlaunch runs stop 20260101", ["20260101-a"]),
        ("zlaunch train --resume 20260102", ["20260102-b"]),
        ("zlaunch train --resume ru", ["runs/"]),
        ("zlaunch runs rerun --runs-dir other c", ["c"]),
        ("zlaunch runs rerun runs/20260101", ["runs/20260101-a/"]),
    ],
)
def test_runs_are_completed(tmp_path: Path, completed: Completed, words: str, answers: list[str]) -> None:
    for name in ("runs/20260101-a", "runs/20260102-b", "other/c"):
        put_run(tmp_path, name)
    assert sorted(completed(words)) == sorted(answers)


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        ("zlaunch config explain zero_opt", ["zero_optimization"]),
        ("zlaunch config explain fp16.hyst", ["fp16.hysteresis"]),
        ("zlaunch config explain reduce_b", ["reduce_bucket_size"]),
        ("zlaunch train --set gradient_cl", ["gradient_clipping="]),
        ("zlaunch train --set zero_opt", ["zero_optimization."]),
        ("zlaunch estimate gpt2 --on 8xB2", ["8xB200"]),
        ("zlaunch plan gpt2 --on L40", ["L40", "L40S"]),
        ("zlaunch config validate --deepspeed 0.19", ["0.19"]),
        ("zlaunch config explain nothing_like_it", []),
    ],
)
def test_names_that_zlaunch_knows_are_completed(completed: Completed, words: str, answers: list[str]) -> None:
    assert completed(words) == answers


def test_where_nothing_was_run_nothing_is_completed(completed: Completed) -> None:
    assert completed("zlaunch runs show ") == []


def test_a_damaged_zlaunch_yaml_does_not_disturb_a_shell(tmp_path: Path, completed: Completed) -> None:
    (tmp_path / "zlaunch.yaml").write_text("stage: [")
    assert completed("zlaunch train --stag") == ["--stage"]


def test_a_completion_does_not_import_torch(tmp_path: Path) -> None:
    words = {"COMP_WORDS": "zlaunch runs show lat", "COMP_CWORD": "3", "_ZLAUNCH_COMPLETE": "complete_bash"}
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    put_run(tmp_path / "runs", "a")
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**os.environ, **words, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["latest", "False"]
