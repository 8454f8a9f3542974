"""A real training that resumes from a checkpoint of another run."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.running import ACTIVATED, Result, zlaunch

pytestmark = pytest.mark.job

STEPS = (
    *("--max_steps", "6", "--logging_steps", "1", "--save_strategy", "steps", "--save_steps", "4"),
    *("--per_device_train_batch_size", "1", "--sequence_length", "16"),
)


def train(folder: Path, *words: str, more: tuple[str, ...] = ()) -> Result:
    result = zlaunch("train", "--stage", "2", *words, "--", *STEPS, *more, cwd=folder, env=ACTIVATED)
    assert result.status == 0, result.err
    return result


def losses(folder: Path, run: str) -> list[str]:
    return re.findall(r"'loss': '([\d.]+)'", (folder / run / "logs" / "rank-0.log").read_text())


def record(folder: Path, *names: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(folder.joinpath(*names).read_text())
    return found


@pytest.mark.full
def test_a_resumed_run_takes_the_steps_of_one_that_was_not_interrupted(tmp_path: Path) -> None:
    whole = train(tmp_path, "--save", "whole", "--run-dir", "a")
    assert "saves   a checkpoint every 4 steps to whole, 50 MiB each, 2 in all: 99 MiB; " in whole.err
    end = " ".join(whole.err.partition("model: ")[2].split())
    typed = "`zlaunch train --resume whole/checkpoint-6 --stage 2 --save whole -- --max_steps 6 "
    assert end.startswith(f"whole, for `from_pretrained` checkpoint: {typed}")
    assert end.endswith("` resumes from step 6, its last step: ask for more steps")
    shown = zlaunch("runs", "show", "a", cwd=tmp_path)
    assert "model       whole, for `from_pretrained`" in shown.out
    again = train(tmp_path, "--resume", "whole/checkpoint-4", "--save", "again", "--run-dir", "b")
    skips = "resume  whole/checkpoint-4, step 4; the Trainer skips the 8 samples that it has seen"
    assert skips in " ".join(again.err.split()).replace("resume ", "resume  ")
    assert "differs" not in again.err
    assert record(tmp_path, "b", "ranks", "rank-0.pulse.json")["first_step"] == 4
    assert losses(tmp_path, "b") == losses(tmp_path, "a")[4:]
    assert (tmp_path / "again" / "model.safetensors").is_file()
    alone = ("--gpus", "1", "--allow-reshard", "--run-dir", "c", "--save", "whole")
    one = train(
        tmp_path, "--resume", "whole/checkpoint-4", *alone, more=("--gradient_accumulation_steps", "2")
    )
    said = " ".join(one.err.split())
    why = "its optimizer is partitioned for 2 ranks, not for 1"
    assert re.search(rf"convert before the start, to whole/checkpoint-4/\S+, about .* of disk: {why}", said)
    assert "the checkpoint was converted in" in said
    assert [*map(float, losses(tmp_path, "c"))] == pytest.approx(
        [*map(float, losses(tmp_path, "a")[4:])], abs=0.1
    )
