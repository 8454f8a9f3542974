"""What a Trainer takes from its checkpoint, and what is left to train."""

import json
from pathlib import Path

import pytest

from tests.checkpoint.trainers import trainers
from tests.each import each
from tests.resume.resuming import TRAINER, findings, planned
from zlaunch.errors import Severity

pytestmark = pytest.mark.job

STATE = {
    "global_step": 5,
    "epoch": 1.0,
    "save_steps": 4,
    "logging_steps": 10,
    "eval_steps": 500,
    "max_steps": 5,
}


@pytest.fixture(scope="module")
def five(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = trainers(tmp_path_factory.mktemp("out"), 5, saved / "zero2")
    (folder / "trainer_state.json").write_text(json.dumps(STATE))
    return folder


@each(
    ("argv", "codes"),
    [
        ("", []),
        ("--save_steps 4 --logging_steps 10", []),
        ("--save_steps 100", ["kept-argument"]),
        ("--max_steps 40 --save_steps 0.1", []),
        ("--max_steps 40 --save_steps 0.2 --logging_steps 1", ["kept-argument"] * 2),
        ("--max_steps 6", []),
        ("--max_steps 5", ["nothing-to-train"]),
        ("--num_train_epochs 1", ["nothing-to-train"]),
        ("--num_train_epochs 1.5", []),
        ("--num_train_epochs 1 --max_steps 9", []),
    ],
)
def test_what_a_trainer_does_with_its_checkpoint_is_said(argv: str, codes: list[str], five: Path) -> None:
    found = findings(planned(five, TRAINER, 2, *argv.split()))
    assert [one.code for one in found] == codes
    assert {one.severity for one in found} <= {Severity.ADVICE}


def test_the_file_to_change_is_named(five: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(five.parent)
    (found,) = findings(planned(five, TRAINER, 2, "--save_steps", "100"))
    assert found.message.endswith("the Trainer keeps the `save_steps` of the checkpoint, which is 4")
    assert found.hint == f"change `save_steps` in {five.name}/trainer_state.json"
