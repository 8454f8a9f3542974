"""One real measurement of two small configurations; what is run, and when it ends, is in tests/launch."""

import json
from pathlib import Path

import pytest

from tests.running import Result, zlaunch

pytestmark = [pytest.mark.job, pytest.mark.full]

SCRIPT = """
import argparse, deepspeed, torch
parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--output_dir")
args = parser.parse_args()
net = torch.nn.Linear(64, 64)
engine, *_ = deepspeed.initialize(args=args, model=net, optimizer=torch.optim.AdamW(net.parameters()))
for step in range(100_000):
    x = torch.ones(engine.train_micro_batch_size_per_gpu(), 64, dtype=next(engine.parameters()).dtype)
    engine.backward(engine(x).float().mean())
    engine.step()
    if step == 5:
        engine.save_checkpoint(args.output_dir)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    (folder / "train.py").write_text(SCRIPT)
    return folder


def measure(place: Path, output: str) -> Result:
    words = ("train.py", "--measure", "--gpus", 1, "--top", 2, "--steps", 10, "-o", output, "--json")
    return zlaunch("plan", *words, "--", "--output_dir", "out", cwd=place, env={"ZLAUNCH_CACHE": "cache"})


@pytest.fixture(scope="module")
def result(place: Path) -> Result:
    done = measure(place, "ds_config.json")
    assert done.status == 0, done.err
    return done


def test_the_fastest_that_ran_is_written_with_what_was_measured(place: Path, result: Result) -> None:
    measured = json.loads(result.out)["measured"]
    assert {one["stage"] for one in measured} == {0, 1}
    assert all(one["seconds"] > 0 and one["memory"] > 1 << 20 for one in measured)
    assert {run["batch"] for one in measured for run in one["runs"]} == {8}
    config = json.loads((place / "ds_config.json").read_text())
    assert config["zero_optimization"]["stage"] == measured[0]["stage"]
    assert measured[0]["provenance"] in result.err
    assert json.loads((place / "ds_config.measured.json").read_text())["measured"] == measured


def test_what_the_script_saves_is_deleted_and_the_runs_are_not_among_others(
    place: Path, result: Result
) -> None:
    assert not (place / "out").exists()
    (folder,) = (place / "runs").iterdir()
    assert not (folder / "saved").exists()
    assert json.loads(zlaunch("runs", "list", "--json", cwd=place).out) == []


def test_the_same_question_is_answered_without_another_run(place: Path, result: Result) -> None:
    again = json.loads(measure(place, "again.json").out)
    before = json.loads(result.out)
    assert again["measured"] == before["measured"]
    assert again["kept_runs"] == sum(len(one["runs"]) for one in before["measured"])
