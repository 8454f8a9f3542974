"""`zlaunch runs send`: with a tracker that is a folder on PYTHONPATH, as a package is."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.recorded_run import write_run
from tests.running import ROOT, Result, zlaunch

WANDB = """import json, pathlib
class Run:
    url, offline = None, True
    def __init__(self, words): self.lines = [words]
    def log(self, values, step): self.lines.append([step, values])
    def finish(self): pathlib.Path("told.json").write_text(json.dumps(self.lines))
def init(**words):
    print("wandb: noise")
    return Run(words)
"""
LINES: tuple[dict[str, Any], ...] = (
    {"time": 1.0, "step": None, "loss": None, "ranks": [], "machines": {}},
    {
        "time": 2.0,
        "step": 3,
        "loss": 2.5,
        "ranks": [{"rank": 1, "rss_bytes": 1 << 31}],
        "machines": {"w1": {"memory_available_bytes": 1 << 30}},
    },
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with a run that is over, and a wandb."""
    root = write_run(tmp_path / "runs" / "a", 4)
    (root / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    job = json.loads((root / "job.json").read_text())
    (root / "job.json").write_text(json.dumps({**job, "python": None}))
    (tmp_path / "wandb.py").write_text(WANDB)
    return tmp_path


def sent(folder: Path, *words: str) -> Result:
    return zlaunch("runs", "send", "a", *words, cwd=folder, env={"PYTHONPATH": f"{folder}:{ROOT}"})


def test_the_numbers_of_a_run_arrive_under_their_names(folder: Path) -> None:
    result = sent(folder, "--to", "wandb", "--project", "mine")
    assert result.status == 0, result.err
    assert result.out == "1 line sent: offline; `wandb sync runs/a/wandb` uploads it\n"
    begun, *lines = json.loads((folder / "told.json").read_text())
    assert begun == {"project": "mine", "name": "a", "dir": str(folder / "runs" / "a")}
    expected = {"zlaunch/loss": 2.5, "zlaunch/rank_1/memory_gib": 2.0, "zlaunch/w1/memory_available_gib": 1.0}
    assert lines == [[3, expected]]


def test_following_a_run_that_is_over_ends(folder: Path) -> None:
    assert json.loads(sent(folder, "--to", "wandb", "--follow", "--json").out)["sent"] == 1


def test_a_tracker_that_the_run_does_not_have_is_named(folder: Path) -> None:
    (folder / "wandb.py").write_text("raise ModuleNotFoundError(\"No module named 'wandb'\")\n")
    result = sent(folder, "--to", "wandb")
    assert result.status == 69
    assert "the Python of the run has no wandb" in result.err
    assert "`pip install wandb`" in result.err


def test_a_run_without_metrics_is_an_error(folder: Path) -> None:
    (folder / "runs" / "a" / "metrics.jsonl").unlink()
    result = sent(folder)
    assert (result.status, "a has no metrics" in result.err) == (69, True)
