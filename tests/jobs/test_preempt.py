"""Real trainings that are asked to save and stop, by real signals, and that go on later as if nothing had been."""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.running import ACTIVATED, Result, start, zlaunch
from zlaunch.rundir.layout import RunDir

pytestmark = pytest.mark.job

TRAINER = (
    *("--max_steps", "60", "--logging_steps", "1", "--save_strategy", "steps", "--save_steps", "30"),
    *("--per_device_train_batch_size", "1", "--sequence_length", "16"),
)

ENGINE = """
import argparse, os, time
import deepspeed, torch
parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--output_dir")
parser.add_argument("--every", type=int, default=5)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--slow_after", type=int, default=10000)
args = parser.parse_args()
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
    def forward(self, x):
        return self.layers(x)
    def state_dict(self, *args, **kwargs):
        time.sleep(100 if step >= slow_after else 0)
        return super().state_dict(*args, **kwargs)
model, step, slow_after = Net(), 0, args.slow_after
engine, *_ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
if resume := os.environ.get("ZLAUNCH_RESUME"):
    _, state = engine.load_checkpoint(resume)
    assert state["done"] == engine.global_steps
rank = torch.distributed.get_rank()
for step in range(engine.global_steps, args.steps):
    for micro in range(engine.gradient_accumulation_steps()):
        torch.manual_seed(1000 * step + 10 * micro + rank)
        x = torch.rand(engine.train_micro_batch_size_per_gpu(), 4)
        y = engine(x.to(next(engine.parameters()).dtype)).float()
        loss = (y - x.sum(1, keepdim=True)).pow(2).mean()
        engine.backward(loss)
        engine.step()
        time.sleep(0.05)
    print(f"step {step + 1} loss {loss.item():.10f}", flush=True)
    if args.output_dir and (step + 1) % args.every == 0:
        engine.save_checkpoint(args.output_dir, client_state={"done": step + 1})
"""

ACCELERATE = """
import argparse, os, time
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
parser = argparse.ArgumentParser()
parser.add_argument("--output_dir")
args = parser.parse_args()
accelerator = Accelerator(gradient_accumulation_steps=2)
set_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
data = DataLoader(torch.rand(64, 4), batch_size=2)
model, optimizer, data, schedule = accelerator.prepare(model, optimizer, data, schedule)
done = 0
if resume := os.environ.get("ZLAUNCH_RESUME"):
    accelerator.load_state(resume)
    done = int(resume.rpartition("_")[2])
steps, of_epoch = 30, len(data) // 2
while done < steps:
    data.set_epoch(done // of_epoch)
    batches = accelerator.skip_first_batches(data, 2 * (done % of_epoch)) if done % of_epoch else data
    for x in batches:
        with accelerator.accumulate(model):
            x = x.to(next(model.parameters()).dtype)
            loss = (model(x) - x.sum(1, keepdim=True)).float().pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        time.sleep(0.05)
        if accelerator.sync_gradients:
            done += 1
            rate = schedule.get_last_lr()[0]
            print(f"step {done} loss {loss.item():.10f} rate {rate:.10f}", flush=True)
        if done >= steps:
            break
"""

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
}

ASLEEP = "import deepspeed, time\nprint('asleep', flush=True)\ntime.sleep(100)\n"

KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("preempted")
    (folder / "engine.py").write_text(ENGINE)
    (folder / "accelerated.py").write_text(ACCELERATE)
    (folder / "asleep.py").write_text(ASLEEP)
    (folder / "ds.json").write_text(json.dumps(CONFIG))
    return folder


def interrupted(
    folder: Path, run: str, number: int, *words: str, step: int = 4, env: Mapping[str, str] | None = None
) -> Result:
    """Start a job, send a signal to zlaunch once it has taken so many steps, and wait for its end."""
    layout, err = RunDir(folder / run), folder / f"{run}.err"
    with err.open("wb") as file:
        job = start(
            "train", "--run-dir", run, *words, cwd=folder, env={**ACTIVATED, **(env or {})}, stderr=file
        )
    until(lambda: job.poll() is not None or step_of(layout) >= step)
    assert job.returncode is None, err.read_text()
    os.kill(job.pid, number)
    return Result(job.wait(300), "", err.read_text())


def step_of(layout: RunDir) -> int:
    step: int = json.loads(layout.rank_heartbeat(0).read_text())["step"]
    return step


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            if holds():
                return
        time.sleep(0.02)
    raise AssertionError


def resumed(folder: Path, run: str, *words: str) -> Result:
    result = zlaunch("train", "--run-dir", run, "--resume", "latest", *words, cwd=folder, env=ACTIVATED)
    assert result.status == 0, result.err
    return result


def losses(folder: Path, *runs: str) -> list[str]:
    """Read what the first rank printed of each step."""
    logs = "".join((folder / run / "logs" / "rank-0.log").read_text() for run in runs)
    return re.findall(r"'loss': '[\d.e-]+', 'grad_norm': '[\d.e-]+'|^step .*", logs, re.MULTILINE)


def ending(folder: Path, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / run / "how-it-ended.json").read_text())
    return found


def said(result: Result) -> str:
    return " ".join(result.err.split())


@pytest.mark.parametrize(
    ("stage", "number", "env"),
    [("3", signal.SIGUSR1, {}), ("2", signal.SIGTERM, KUBERNETES)],
)
@pytest.mark.full  # a job of Slurm that is preempted shows it of a Trainer, and the next test of a single host
def test_a_trainer_saves_on_a_signal_and_resumes_with_the_same_losses(
    folder: Path, stage: str, number: int, env: dict[str, str]
) -> None:
    whole, first, rest = (f"trainer-{stage}-{name}" for name in ("whole", "first", "rest"))
    own = ("--gpus", "1", "--stage", stage, "--save", f"whole-{stage}", "--", *TRAINER)
    assert zlaunch("train", "--run-dir", whole, *own, cwd=folder, env=ACTIVATED).status == 0
    job = ("--gpus", "1", "--stage", stage, "--save", f"out-{stage}", "--", *TRAINER)
    common = ("--resume", f"whole-{stage}/checkpoint-30")  # the weights of a new model are random
    result = interrupted(folder, first, number, *common, *job, step=32 + os.getpid() % 9, env=env)
    assert (result.status, ending(folder, first)["how"]) == (75, "preempted"), result.err
    step = ending(folder, first)["verdict"]["cause"].partition("step ")[2].split()[0]
    name = signal.Signals(number).name
    saved = f"{name} asked to save and stop: step {step} is saved in out-{stage}/checkpoint-{step}"
    assert saved in said(result)
    assert f"zlaunch train --resume out-{stage}/checkpoint-{step} --gpus 1 --stage {stage}" in said(result)
    resumed(folder, rest, *job)
    assert losses(folder, first, rest) == losses(folder, whole)[30:]


@pytest.fixture(scope="module")
def engine_losses(folder: Path) -> list[str]:
    """What an engine's loop prints that nothing interrupts."""
    result = zlaunch("train", *ENGINE_JOB, "--run-dir", "whole", cwd=folder, env=ACTIVATED)
    assert result.status == 0, result.err
    return losses(folder, "whole")


ENGINE_JOB = ("engine.py", "--ds-config", "ds.json", "--gpus", "2")


def test_an_engine_saves_where_its_script_saves_and_resumes_with_the_same_losses(
    folder: Path, engine_losses: list[str]
) -> None:
    job = (*ENGINE_JOB, "--save", "engine")
    result = interrupted(folder, "e1", signal.SIGUSR1, *job, step=6 + os.getpid() % 4)
    assert (result.status, ending(folder, "e1")["how"]) == (75, "preempted"), result.err
    assert "is saved in engine/global_step" in said(result)
    resumed(folder, "e2", *job)
    assert losses(folder, "e1", "e2") == engine_losses


@pytest.mark.full
def test_a_job_that_saves_no_later_step_than_before_is_not_to_be_started_again(folder: Path) -> None:
    forgets = ENGINE.replace('os.environ.get("ZLAUNCH_RESUME")', 'os.environ.get("ZLAUNCH_RESUME") and None')
    (folder / "forgets.py").write_text(forgets)
    job = ("forgets.py", "--ds-config", "ds.json", "--gpus", "1", "--save", "again")
    assert interrupted(folder, "f1", signal.SIGUSR1, *job, "--", "--steps", "400", step=20).status == 75
    result = interrupted(folder, "f2", signal.SIGUSR1, *job, "--resume", "latest", "--", "--steps", "400")
    assert (result.status, ending(folder, "f2")["how"]) == (124, "preempted"), result.err
    assert "saved nothing newer" in said(result)


@pytest.mark.full
def test_accelerate_saves_before_its_script_has_and_resumes_with_the_same_losses(folder: Path) -> None:
    job = ("accelerated.py", "--stage", "2", "--gpus", "1")
    assert zlaunch("train", *job, "--run-dir", "a", cwd=folder, env=ACTIVATED).status == 0
    result = interrupted(folder, "a1", signal.SIGUSR1, *job, "--save", "accelerated", step=5)
    assert result.status == 75, result.err
    step = int(ending(folder, "a1")["verdict"]["cause"].partition("step ")[2].split()[0])
    assert f"is saved in accelerated/step_{step}" in said(result)
    resumed(folder, "a2", *job, "--save", "accelerated")
    whole = losses(folder, "a")
    assert (losses(folder, "a1"), losses(folder, "a2")) == (whole[: step - 1], whole[step:])


def test_a_time_limit_saves_in_time_and_says_when(folder: Path, engine_losses: list[str]) -> None:
    limits = ("--time-limit", "55", "--save-within", "27", "--save", "limited")
    job = ("engine.py", "--ds-config", "ds.json", "--gpus", "2")
    started = time.monotonic()
    result = zlaunch(
        "train", *job, *limits, "--run-dir", "t", "--", "--steps", "4000", cwd=folder, env=ACTIVATED
    )
    assert time.monotonic() - started < 55
    assert result.status == 75, result.err
    assert re.search(r"limit saves and stops at \S+, in time for \S+ \(`--time-limit`, 55 s\)", said(result))
    assert "`--time-limit` (55 s) asked to save and stop: step" in said(result)
    taken = losses(folder, "t")[: len(engine_losses)]
    assert taken
    assert taken == engine_losses[: len(taken)]


def test_a_script_that_saves_nowhere_is_stopped_at_once_and_told_how_to_save(folder: Path) -> None:
    result = interrupted(folder, "n", signal.SIGTERM, *ENGINE_JOB, "--on-preempt", "save")
    assert (result.status, ending(folder, "n")["how"]) == (143, "stopped")
    assert "SIGTERM stopped the job: it is not known where its script saves" in said(result)
    assert "`--save DIR` names a directory" in said(result)


def test_a_job_without_a_step_is_stopped_at_once(folder: Path) -> None:
    layout, err = RunDir(folder / "s"), folder / "s.err"
    with err.open("wb") as file:
        job = start(
            "train", "asleep.py", "--no-ask", "--gpus", "1", "--run-dir", "s", cwd=folder, stderr=file
        )
    until(lambda: "asleep" in layout.rank_log(0).read_text())
    os.kill(job.pid, signal.SIGUSR1)
    assert job.wait(30) == 143
    assert "SIGUSR1 stopped the job: it had not taken its first step" in " ".join(err.read_text().split())


def test_ranks_that_take_too_long_to_save_are_ended_and_the_older_checkpoint_is_named(folder: Path) -> None:
    job = ("engine.py", "--ds-config", "ds.json", "--gpus", "1", "--save", "slow", "--save-within", "4")
    slow = ("--", "--slow_after", "6", "--steps", "1000")
    result = interrupted(folder, "l", signal.SIGUSR1, *job, *slow, step=7)
    assert (result.status, ending(folder, "l")["how"]) == (143, "stopped")
    assert "SIGUSR1 asked to save and stop, and there was no complete checkpoint of step" in said(result)
    assert "zlaunch train --resume slow/global_step5" in said(result)


def test_the_first_sigterm_of_a_pod_saves_and_the_second_ends_the_job_at_once(folder: Path) -> None:
    layout = RunDir(folder / "k")
    words = ("engine.py", "--ds-config", "ds.json", "--gpus", "1", "--save", "twice", "--run-dir", "k")
    slow = ("--", "--slow_after", "6", "--steps", "1000")
    job = start("train", *words, *slow, cwd=folder, env={**ACTIVATED, **KUBERNETES})
    until(lambda: step_of(layout) >= 7)
    os.kill(job.pid, signal.SIGTERM)
    until(lambda: json.loads(layout.rank_heartbeat(0).read_text())["phase"] == "saving")
    os.kill(job.pid, signal.SIGTERM)
    assert job.wait(30) == 143  # it would save for 100 s


def test_runs_stop_can_save_first_and_ranks_ignore_a_signal_that_all_processes_get(folder: Path) -> None:
    layout = RunDir(folder / "c")
    job = start(
        "train",
        *ENGINE_JOB,
        "--save",
        "asked",
        "--run-dir",
        "c",
        "--",
        "--steps",
        "4000",
        cwd=folder,
        env=ACTIVATED,
    )
    until(lambda: step_of(layout) >= 6)
    import psutil

    below = psutil.Process(job.pid).children(recursive=True)
    for process in below:
        process.send_signal(signal.SIGUSR1)
    time.sleep(0.5)
    assert all(process.is_running() for process in below)
    result = zlaunch("runs", "stop", "c", "--save", cwd=folder)
    assert "`zlaunch runs stop --save` asked to save and stop: step" in " ".join(result.out.split())
    assert job.wait(30) == 75
