"""A run of eight GPUs as its files would record it, of any number of steps and with any text in it."""

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STARTED = 1.7e9
WARM_UP = 70.0
SECONDS = 1.3
SPIKE = 19.5
GIB = 1 << 30
NUM_RANKS = 8
LARGEST = 37
"""Of many ranks, the one that takes more memory than the others."""
SECRET = "supersecret"
HOSTILE = "</script><script>document.title = 'owned'</script><img src=x onerror=alert(1)>\"'&`@DATA@ \u2028"


def write_run(root: Path, steps: int, odd: str = "", ranks: int = NUM_RANKS) -> Path:
    """Write a run that failed at its end, and saved halfway; `odd` is part of names and messages."""
    for folder in ("logs", "ranks"):
        (root / folder).mkdir(parents=True)
    files = {**own_files(steps, odd, ranks), **rank_files(steps, odd, ranks)}
    for name, members in files.items():
        (root / name).write_text(json.dumps(members))
    (root / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in step_lines(steps)))
    (root / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in sample_lines(steps, ranks))
    )
    return root


def own_files(steps: int, odd: str, ranks: int) -> dict[str, Any]:
    hosts = [{"rank": rank, "host": f"w{rank // 4}{odd}", "device": rank % 4} for rank in range(ranks)]
    verdict = {
        "code": "script-raised", "cause": f"the script raised a ValueError on rank 3{odd}", "rank": 3, "host": "w0",
        "phase": "backward", "facts": [f"ValueError: no text {odd}", f"HF_TOKEN={SECRET}"],
        "advice": ["`--stage 3`: look at the data"],
    }  # fmt: skip
    peaks = {"load": 1, "initialize": 20, "forward": 48, "backward": 61, "step": 30, "second step": 63}
    return {
        "job.json": {
            "asked": ["zlaunch", "train", "train.py", "--hub_token", SECRET, "--note", odd],
            "script": ["train.py", f"--api-key={SECRET}", odd], "started": STARTED, "launcher": "torchrun",
            "accelerator": "cuda", "precision": "bf16", "interface": "trainer", "stage": 3, "ranks": hosts,
            "offload": {"optimizer": "cpu", "param": None}, "micro_batch": 4, "grad_accum": 2,
            "train_batch_size": 64, "working_directory": f"/home/{odd}", "zlaunch_pid": 7, "host": "w0",
        },
        "ds_config.json": {
            "train_batch_size": 64, "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
            "comet": {"api_key": SECRET, "project": odd}, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        },
        "provenance.json": {
            "set": {"zero_optimization.stage": "`--stage`", "comet.project": f"{odd}.json:4"},
            "left": {"optimizer.params.lr": "the Trainer's `--learning_rate`"},
        },
        "forecast.json": {
            "phases": [
                {"name": name, "peak": {"gpu": peak * GIB, "reserved": (peak + 2) * GIB, "pinned": 40 * GIB}}
                for name, peak in peaks.items()
            ],
            "step": {"likely": [0.9, 1.6], "bound_by": "compute"},
        },
        "environment.json": {"packages": {"torch": "2.9.0"}, "machine": {"gpus": [{"name": f"H200{odd}"}]}},
        "how-it-ended.json": {
            "how": "failed", "exit_status": 1, "returncode": 1, "seconds": WARM_UP + 60 + steps * SECONDS,
            "verdict": verdict,
        },
    }  # fmt: skip


def rank_files(steps: int, odd: str, ranks: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ranks/rank-0.program.json": {
            "engine": {
                "stage": 2, "optimizer": f"DeepSpeedCPUAdam{odd}", "micro_batch": 4, "grad_accum": 2,
                "train_batch_size": 64,
                "ds_config": {
                    "train_batch_size": 64, "bf16": {"enabled": True},
                    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
                    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
                },
            },
            "trainer_args": {"optim": "adafactor", "learning_rate": 3e-4, "hub_token": SECRET},
        }
    }  # fmt: skip
    for rank in range(ranks):
        found[f"ranks/rank-{rank}.json"] = {
            "rank": rank,
            "host": f"w{rank // 4}{odd}",
            "returncode": 1 if rank == 3 else -15,
        }
        found[f"ranks/rank-{rank}.pulse.json"] = {
            "step": steps, "steps": steps, "first_loss": 10.1, "phase": "backward", "tokens": steps * 8192,
            "timed_steps": steps - 2, "parts": parts_of(rank, steps - 2), "busy": 0.97,
            "gpu_steps": steps // 10, "gpu_parts": parts_of(rank, steps // 10), "device": "NVIDIA H200",
            "gpu_allocated_bytes": 62 * GIB, "gpu_reserved_bytes": 66 * GIB,
        }  # fmt: skip
        gpu = {"used_bytes": 68 * GIB, "total_bytes": 139 * GIB}
        found[f"ranks/rank-{rank}.sample.json"] = {"peak_rss_bytes": 42 * GIB, "gpu": gpu}
    return found


def parts_of(rank: int, steps: int) -> dict[str, float]:
    """Rank 5 computes longer than the others, which wait for it."""
    forward = 0.6 if rank == 5 else 0.35
    parts = {"forward": forward, "backward": 0.5, "optimizer step": 0.12, "training": 0.05}
    parts["communication"] = SECONDS - sum(parts.values())
    return {name: max(0, steps) * seconds for name, seconds in parts.items()}


def step_lines(steps: int) -> Iterator[dict[str, Any]]:
    """Write a loss that falls, with one spike and one NaN, logged every tenth step."""
    noise = random.Random(1)
    yield {
        "step": 0,
        "time": STARTED + 30,
        "count": 0,
        "phases": {"importing": 20.0, "loading the model": 10.0},
    }
    yield {"step": 0, "time": STARTED + WARM_UP, "count": 0, "phases": {"initializing DeepSpeed": 40.0}}
    for step in range(1, steps + 1):
        fallen = 2 + 8 * math.exp(-8 * step / steps)
        loss = {steps * 6 // 10: SPIKE, steps * 7 // 10: math.nan}.get(step, fallen + noise.gauss(0, 0.1))
        has_saved, when = step > steps // 2, STARTED + WARM_UP + step * SECONDS
        line: dict[str, Any] = {
            "version": 1, "step": step, "time": round(when + 60 * has_saved, 3), "tokens": step * 8192,
            "step_loss": round(loss, 6),
            "phases": {"forward": 0.35, "backward": 0.7, "optimizer step": 0.2, "training": 0.05},
        }  # fmt: skip
        if step % 10 == 0:
            line |= {
                "loss": round(fallen, 6),
                "learning_rate": 3e-4 * (1 - step / steps),
                "grad_norm": noise.uniform(0.5, 2),
            }
        if step == steps // 2 + 1:
            line["phases"]["saving"] = 60.0
            line["eval_loss"] = 2.4
        yield line


def sample_lines(steps: int, num_ranks: int) -> Iterator[dict[str, Any]]:
    for number in range(int((steps * SECONDS + WARM_UP + 60) / 5)):
        ranks = [
            {
                "rank": rank,
                "rss_bytes": int((20 + min(number, 20) + 0.3 * (rank % 8)) * GIB),
                "gpu_used_bytes": int(
                    min(64 + 0.5 * (rank % 8) + 6 * (rank == LARGEST), 4 * number + 1) * GIB
                ),
            }
            for rank in range(num_ranks)
        ]
        yield {"version": 1, "time": STARTED + 5 * number, "ranks": ranks}
