"""What is seen of real jobs while they run, and what is said when one no longer moves."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.running import ZLAUNCH, run, start, zlaunch
from zlaunch.rundir.layout import RunDir

pytestmark = pytest.mark.job

RAW = """
import argparse, deepspeed, os, time, torch
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
deepspeed.add_config_arguments(parser)
args = parser.parse_known_args()[0]
deepspeed.init_distributed("gloo")
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(16, 8)
        self.out = torch.nn.Linear(8, 1)
    def forward(self, input_ids):
        time.sleep(0.02)
        return self.out(self.table(input_ids)).mean()
    def state_dict(self, *args, **kwargs):
        time.sleep(0.1)
        return super().state_dict(*args, **kwargs)
net = Net()
engine, *_ = deepspeed.initialize(args=args, model=net, model_parameters=net.parameters())
for step in range(40):
    loss = engine(torch.ones(2, 5, dtype=torch.long))
    engine.backward(loss)
    time.sleep(0.02)
    engine.step()
engine.save_checkpoint("checkpoint")
print("loss", float(loss), engine.global_steps)
"""
RAW_CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}

REPORTING = """
import os, time, torch
from zlaunch.worker.report import report
for step in range(1, 31):
    time.sleep(0.1)
    report(step=step, steps=30, loss=torch.tensor(3.0 / step), learning_rate=1e-3, odd=object())
"""

STUCK = """
import os, sys, time, torch
import torch.distributed as dist
from zlaunch.worker.report import report
dist.init_process_group("gloo")
def wait_for_others(step):
    dist.all_reduce(torch.ones(1))
    report(step=step, steps=40)
def dawdle():
    print("dawdling", flush=True)
    time.sleep(1000)
for step in range(1, 40):
    if step == 12 and dist.get_rank() == 1 and "sleep" in sys.argv:
        dawdle()
    time.sleep(0.2)
    wait_for_others(step)
"""


def watched(folder: Path, *args: object) -> tuple[RunDir, list[dict[str, Any]]]:
    """Run a job to its end; return what the pulse of rank 0 said meanwhile."""
    layout = RunDir(folder / "r")
    job = start("train", *args, cwd=folder)
    seen: list[dict[str, Any]] = []
    while job.poll() is None:
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(layout.rank_heartbeat(0).read_text())
            if not seen or found["time"] != seen[-1]["time"]:
                seen.append(found)
        time.sleep(0.003)
    assert job.returncode == 0, layout.rank_log(0).read_text()[-3000:]
    seen.append(json.loads(layout.rank_heartbeat(0).read_text()))
    return layout, seen


def phases_of(seen: list[dict[str, Any]]) -> set[str]:
    return {pulse["phase"] for pulse in seen}


def metrics(layout: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in layout.metrics.read_text().splitlines()]


def history(layout: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in layout.steps.read_text().splitlines()]


def check_time_of_steps(lines: list[dict[str, Any]], last: dict[str, Any]) -> None:
    """Compare the parts of all timed steps with the time between the first and the last of them."""
    assert last["timed_steps"] == len(lines) - 2
    parts = last["parts"]
    took = lines[-1]["time"] - lines[1]["time"]
    assert sum(parts.values()) == pytest.approx(took, rel=0.03, abs=0.02)
    assert parts["forward"] > 0.04 * last["timed_steps"] < parts["training"] + parts["backward"]


def check_time_of_phases(lines: list[dict[str, Any]], seen: list[dict[str, Any]]) -> None:
    """Compare the time of all phases with that between the first and the last pulse."""
    spent = sum(sum(line.get("phases", {}).values()) for line in lines)
    assert spent == pytest.approx(seen[-1]["time"] - seen[0]["time"], rel=0.1, abs=0.5)


def test_a_trainer_tells_its_course_without_a_change(tmp_path: Path) -> None:
    flags = ["--stage", "3", "--gpus", "2", "--run-dir", "r"]
    own = ["--max_steps", "12", "--logging_steps", "2", "--sequence_length", "16"]
    own += ["--save_strategy", "steps", "--save_steps", "6"]
    layout, seen = watched(tmp_path, *flags, "--", *own)
    wanted = {
        "importing",
        "initializing DeepSpeed",
        "forward",
        "backward",
        "optimizer step",
        "saving",
        "exiting",
    }
    assert wanted <= phases_of(seen)
    steps = [pulse["step"] for pulse in seen]
    assert steps == sorted(steps)
    last = seen[-1]
    assert (last["step"], last["steps"], last["trained"], last["phase"]) == (12, 12, True, "exiting")
    assert isinstance(last["loss"], float)
    assert isinstance(last["learning_rate"], float)
    assert last["tokens"] > 0
    rows = metrics(layout)
    shown = rows[-1]
    assert (shown["step"], shown["steps"], shown["phase"]) == (12, 12, "exiting")
    assert [rank["rank"] for rank in shown["ranks"]] == [0, 1]
    # a rank that exits may have returned its memory when the last row was written
    assert any(all((rank["rss_bytes"] or 0) > 100 << 20 for rank in row["ranks"]) for row in rows)
    (machine,) = shown["machines"].values()
    assert machine["memory_bytes"] == psutil.virtual_memory().total
    lines = [line for line in history(layout) if line.get("count") != 0]
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert [line["step"] for line in lines if "loss" in line] == [2, 4, 6, 8, 10, 12]
    assert all("learning_rate" in line and "grad_norm" in line for line in lines)
    assert [line["tokens"] for line in lines] == [last["tokens"] // 12 * step for step in range(1, 13)]
    logged = [sum(line["step_loss"] for line in lines[at : at + 2]) / 2 for at in range(0, 12, 2)]
    assert [line["loss"] for line in lines if "loss" in line] == pytest.approx(logged, rel=0.2)
    check_time_of_phases(history(layout), seen)
    page = zlaunch("runs", "report", "r", "--json", cwd=tmp_path)
    assert json.loads(page.out)["history"]["numbers"]["learning_rate"][-1] == pytest.approx(
        last["learning_rate"]
    )


def test_an_engine_without_a_trainer_tells_its_course(tmp_path: Path) -> None:
    (tmp_path / "raw.py").write_text(RAW)
    (tmp_path / "ds.json").write_text(json.dumps(RAW_CONFIG))
    flags = ["raw.py", "--ds-config", "ds.json", "--gpus", "2", "--run-dir", "r"]
    layout, seen = watched(tmp_path, *flags)
    wanted = {"joining the process group", "training", "forward", "backward", "optimizer step", "saving"}
    assert wanted <= phases_of(seen)
    last = seen[-1]
    assert (last["step"], last["tokens"], last["phase"]) == (20, 40 * 10, "exiting")
    assert f"loss {last['loss']}" in layout.rank_log(0).read_text()
    assert last["learning_rate"] == 1e-3
    lines = [line for line in history(layout) if line.get("count") != 0]
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert [line["tokens"] for line in lines] == [20 * step for step in range(1, 21)]
    assert [f"{line['loss']:.4f}" for line in lines[-1:]] == [f"{last['loss']:.4f}"]
    check_time_of_phases(history(layout), seen)
    check_time_of_steps(lines, last)


def test_a_script_with_neither_reports_in_two_lines(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(REPORTING)
    layout, seen = watched(tmp_path, "own.py", "--gpus", "1", "--run-dir", "r")
    assert {"training", "exiting"} <= phases_of(seen)
    last = seen[-1]
    assert (last["step"], last["steps"], last["loss"]) == (30, 30, pytest.approx(0.1))
    assert "odd" not in last
    assert metrics(layout)[-1]["step"] == 30
    losses = [line["loss"] for line in history(layout) if line.get("count") != 0]
    assert losses == pytest.approx([3.0 / step for step in range(1, 31)], rel=1e-6)


def test_nothing_that_ranks_printed_is_shown_after_the_end_in_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(f"{REPORTING}\nprint('Time to load an op')\n")
    job = shlex.join([*ZLAUNCH, "train", "own.py", "--gpus", "1"])
    shown = run("script", "-qec", job, "/dev/null", cwd=tmp_path, env={"TERM": "xterm"}).out
    assert "Time to load" not in shown
    assert "30 steps, loss 3.000 -> 0.111 (median of the last 7), at most " in " ".join(shown.split())


def test_a_script_that_reports_runs_without_zlaunch_too(tmp_path: Path) -> None:
    from zlaunch.worker.report import report

    report(step=1, steps=2, loss=3.0)
    assert list(tmp_path.iterdir()) == []


def test_the_rank_that_the_others_wait_for_is_named_with_its_line_and_the_job_stopped(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    flags = ["--gpus", "2", "--run-dir", "r", "--stall-after", "3", "--on-stall", "stop"]
    result = zlaunch("train", "stuck.py", *flags, "--", "sleep", cwd=tmp_path, timeout=120)
    assert result.status == 124
    line = STUCK.splitlines().index("    time.sleep(1000)") + 1
    told = " ".join(result.err.split())
    assert f"rank 1 (differs from the others): {tmp_path.name}/stuck.py:{line} dawdle" in told
    assert "all_reduce, called from" in told
    assert json.loads((tmp_path / "r" / "how-it-ended.json").read_text())["how"] == "stalled"


def test_a_rank_that_is_stopped_is_named_and_the_job_goes_on_when_it_does(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    layout = RunDir(tmp_path / "r")
    argv = [*ZLAUNCH, "train", "stuck.py", "--gpus", "2", "--run-dir", "r", "--stall-after", "3"]
    with (tmp_path / "err").open("wb") as err:
        job = subprocess.Popen(argv, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=err)
    until(lambda: json.loads(layout.rank_heartbeat(1).read_text())["step"] >= 10)
    pid = json.loads(layout.rank_record(1).read_text())["pid"]
    os.kill(pid, signal.SIGSTOP)
    until(lambda: "did not answer; its process is stopped" in (tmp_path / "err").read_text())
    assert "rank 1: did not answer; its process is stopped" in (tmp_path / "err").read_text()
    os.kill(pid, signal.SIGCONT)
    assert job.wait(120) == 0


def until(holds: Any) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            if holds():
                return
        time.sleep(0.1)
    raise AssertionError
