"""A real Trainer resumes from a checkpoint that was saved by other ranks, at another stage."""

import re
from pathlib import Path

import pytest

from tests.running import ACTIVATED, zlaunch

pytestmark = pytest.mark.job

STEPS = ("--max_steps", 4, "--logging_steps", 1, "--sequence_length", 32)


def losses(folder: Path) -> list[float]:
    log = (folder / "logs" / "rank-0.log").read_text()
    return [float(loss) for loss in re.findall(r"'loss': '?([0-9.]+)", log)]


@pytest.mark.full
def test_a_trainer_resumes_with_one_rank_at_stage_3_where_two_at_stage_2_have_stopped(tmp_path: Path) -> None:
    saving = ("--save_strategy", "steps", "--save_steps", 2, "--per_device_train_batch_size", 2)
    flags = ("--gpus", 2, "--stage", 2, "--run-dir", "two")
    two = zlaunch("train", *flags, "--", *STEPS, *saving, "--output_dir", "out", cwd=tmp_path, env=ACTIVATED)
    assert two.status == 0, two.err
    options = ("out/checkpoint-2", "moved", "--ranks", 1, "--stage", 3)
    result = zlaunch("checkpoint", "reshard", *options, cwd=tmp_path, env=ACTIVATED)
    assert result.status == 0, result.err
    asked = " ".join(result.err.split())
    (typed,) = re.findall("`zlaunch (train --resume moved .*?) …` resumes from it", asked)
    one_rank = ("--gpus", 1, "--stage", 3, "--run-dir", "one", "--save", "out-2")
    batch = ("--per_device_train_batch_size", 4)
    one = zlaunch(*typed.split(), *one_rank, "--", *STEPS, *batch, cwd=tmp_path, env=ACTIVATED)
    assert one.status == 0, one.err
    # bf16 has 8 bits, and one rank adds up in another order
    assert losses(tmp_path / "one") == pytest.approx(losses(tmp_path / "two")[2:], rel=2e-2)
    assert len(losses(tmp_path / "one")) == 2
