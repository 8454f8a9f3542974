"""Real second attempts: after a rank that was killed, and after one that got no memory."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.memory_groups import memory_groups
from tests.running import ZLAUNCH, run, start, zlaunch

pytestmark = pytest.mark.job

GREEDY = """
import argparse, os, time

def arguments():
    return HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()

parser = argparse.ArgumentParser()
parser.add_argument("--per_device_train_batch_size", type=int, default=8)
size = parser.parse_known_args()[0].per_device_train_batch_size
kept = b"x" * (size * (100 << 20) if os.environ["RANK"] == "1" else 1)
time.sleep(1)
print("trained with", size)
"""

DIVERGING = """
import time
import torch
from transformers import HfArgumentParser, Trainer, TrainingArguments

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}

class Diverging(Trainer):
    def compute_loss(self, *args, **options):
        time.sleep(0.2)
        loss = super().compute_loss(*args, **options)
        is_lost = self.state.global_step >= 7 and self.args.resume_from_checkpoint is None
        return loss * float("nan") if is_lost else loss

(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
data = [{"x": torch.ones(4) * i, "labels": torch.ones(1)} for i in range(8)]
Diverging(Net(), args, train_dataset=data).train(resume_from_checkpoint=args.resume_from_checkpoint)
"""


def killed_at_save(folder: Path) -> tuple[Path, bool]:
    """Kill rank 1 when it begins to save for the second time; return whether it was killed before the end."""
    folder.mkdir()
    steps = ["--max_steps", "12", "--logging_steps", "1", "--save_strategy", "steps", "--save_steps", "4"]
    flags = ["--stage", "2", "--max-restarts", "1", "--run-dir", "r"]
    job = start("train", *flags, "--", *steps, "--sequence_length", "16", "--output_dir", "out", cwd=folder)
    half = folder / "out" / "checkpoint-8"
    while not half.exists():
        assert job.poll() is None
        time.sleep(0.002)
    os.kill(read(folder / "r" / "ranks" / "rank-1.json")["pid"], signal.SIGKILL)
    is_in_save = not (half / "trainer_state.json").exists()
    assert job.wait(300) == 0
    return folder, is_in_save


@pytest.mark.full
def test_a_rank_killed_during_a_save_is_started_again_from_the_checkpoint_before_with_equal_losses(
    tmp_path: Path,
) -> None:
    tries = (killed_at_save(tmp_path / str(number)) for number in range(3))
    run = next(folder for folder, is_in_save in tries if is_in_save)  # a save takes tens of milliseconds
    first, second = (read(run / name / "how-it-ended.json") for name in ("r", "r-restart-1"))
    assert (first["how"], first["verdict"]["code"], first["verdict"]["rank"]) == ("failed", "killed", 1)
    assert second["how"] == "finished"
    again = read(run / "r-restart-1" / "job.json")
    assert (again["attempt"], again["continues"]) == (2, "r")
    assert again["script"][again["script"].index("--resume_from_checkpoint") + 1].endswith("out/checkpoint-4")
    before, after = losses(run / "r"), losses(run / "r-restart-1")
    assert (len(before), len(after)) == (8, 12 - 4)
    assert after[: len(before) - 4] == before[4:]


def test_a_job_whose_loss_stays_nan_resumes_from_a_checkpoint_of_before(tmp_path: Path) -> None:
    (tmp_path / "diverging.py").write_text(DIVERGING)
    bucket = ["--set", "zero_optimization.reduce_bucket_size=1000"]
    options = [
        "--gpus",
        "1",
        "--stage",
        "1",
        *bucket,
        "--on-nan",
        "rollback",
        "--run-dir",
        "r",
        "diverging.py",
    ]
    steps = ["--max_steps", "20", "--save_strategy", "steps", "--save_steps", "4", "--output_dir", "out"]
    result = zlaunch("train", *options, "--", *steps, cwd=tmp_path)
    assert result.status == 0, result.err
    assert "the loss is nan since step 8: ending the job" in result.err
    first, second = (read(tmp_path / name / "how-it-ended.json") for name in ("r", "r-restart-1"))
    assert (first["how"], first["exit_status"], first["verdict"]["code"]) == (
        "failed",
        1,
        "loss-not-a-number",
    )
    assert second["how"] == "finished"
    again = read(tmp_path / "r-restart-1" / "job.json")["script"]
    assert again[again.index("--resume_from_checkpoint") + 1].endswith("out/checkpoint-4")


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with room for half of what the greedy script wants at first."""
    with memory_groups(1000 << 20) as (group,):
        yield group


def test_a_job_without_memory_is_tried_with_smaller_micro_batches(group: Path, tmp_path: Path) -> None:
    (tmp_path / "greedy.py").write_text(GREEDY)
    command = " ".join([*ZLAUNCH, "train", "greedy.py", "--on-oom", "retry", "--run-dir", "r"])
    result = run("sh", "-c", f"echo $$ > {group / 'cgroup.procs'}; exec {command}", cwd=tmp_path)
    assert result.status == 0, result.err
    assert "the kernel killed rank 1" in result.err
    smaller = "--per_device_train_batch_size 4 --gradient_accumulation_steps 2"
    assert f"smaller micro-batch: `-- {smaller}`" in " ".join(result.err.split())
    assert read(tmp_path / "r" / "how-it-ended.json")["verdict"]["code"] == "host-out-of-memory"
    assert "trained with 4" in result.out


def test_what_is_tried_next_is_told_in_lines_that_fit(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    result = run(*ZLAUNCH, "train", "killed.py", "--max-restarts", "1", cwd=tmp_path)
    assert result.status == 137, result.err
    said = result.err.partition("attempt 2")[2].splitlines()
    assert said[0].startswith(", restart 1 of 1: ")
    assert max(map(len, result.err.splitlines())) <= 80


def test_why_an_attempt_could_not_start_is_told(tmp_path: Path) -> None:
    damages = "open(__file__, 'w').write('a =')"
    (tmp_path / "killed.py").write_text(f"import os\n{damages}\nos.kill(os.getpid(), 9)\n")
    result = run(*ZLAUNCH, "train", "killed.py", "--gpus", "1", "--max-restarts", "1", cwd=tmp_path)
    assert result.status == 137, result.err
    assert "1 problem found\nkilled.py:1:4: error: [not-python]" in result.err.partition("not tried")[2]


@pytest.mark.full
def test_the_restarts_of_a_job_leave_the_run_directories_of_its_requeued_starts_to_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "killed.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    for name in ("r", "r-attempt-2"):  # as `--submit` names them
        words = ["killed.py", "--gpus", "1", "--max-restarts", "1", "--run-dir", name]
        result = zlaunch("train", *words, cwd=tmp_path)
        assert result.status == 137, result.err
        assert read(tmp_path / f"{name}-restart-1" / "job.json")["continues"] == name


def test_the_last_words_name_the_log_of_the_rank_where_a_failure_began(tmp_path: Path) -> None:
    script = "import os\nassert os.environ['RANK'] != '1', 'rank 1 has nothing'\nprint('well')\n"
    (tmp_path / "fails.py").write_text(script)
    result = run(*ZLAUNCH, "train", "fails.py", "--run-dir", "r", cwd=tmp_path)
    *_, log, about = result.err.splitlines()
    assert (log, about) == ("the log of rank 1 is r/logs/rank-1.log", "details are in r")
    assert "rank 1 has nothing" in (tmp_path / "r" / "logs" / "rank-1.log").read_text()


def losses(run: Path) -> list[str]:
    return re.findall(r"'loss': '([\d.]+)'", (run / "logs" / "rank-0.log").read_text())


def read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found
