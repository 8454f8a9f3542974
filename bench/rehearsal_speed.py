"""Measure rehearsals, compared with importing the packages: `python -m bench.rehearsal_speed [WORDS]`.

Runs the cases whose name contains one of WORDS, else all: workloads, then whole commands, each with an empty
cache and again with the cache filled. The ratio to the import in the same run is more reliable than seconds,
and CPU time more than wall time on a busy machine.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.gpu_cells import LLAMA_31_8B, MODELS
from tests.estimate.rehearsing import rehearse
from zlaunch.estimate.workload import Workload

BIG = {
    **MODELS["8B"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
CPU = {"device": "cpu", "pin_memory": True}
STRATEGIES: tuple[tuple[int, dict[str, Any]], ...] = (
    (3, {"offload_optimizer": CPU, "offload_param": CPU}),
    (3, {"offload_optimizer": CPU}),
    (3, {}),
    (2, {"offload_optimizer": CPU}),
    (2, {}),
    (1, {}),
    (0, {}),
)


def workload(model: dict[str, Any], stage: int, ranks: int, zero: dict[str, Any] | None = None) -> Workload:
    """Return a workload with micro-batches of one sequence of 2,048 tokens and activation checkpointing."""
    ds_config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, **(zero or {})},
    }
    return Workload(
        model=model,
        ds_config=ds_config,
        world_size=ranks,
        ranks_per_host=min(8, ranks),
        seq_len=2048,
        optimizer="adamw_torch_fused",
        zero_init=stage == 3,
        activation_checkpointing=True,
        save=False,
    )


def deeper(num_layers: int) -> dict[str, Any]:
    """Return the 8 B model with another number of layers."""
    return {**MODELS["8B"], "num_hidden_layers": num_layers}


WORKLOADS: dict[str, list[Workload]] = {
    "8 B, stage 2, 8 ranks": [workload(MODELS["8B"], 2, 8)],
    "8 B, stage 3, 8 ranks": [workload(MODELS["8B"], 3, 8)],
    "8 B, stage 3, 64 ranks": [workload(MODELS["8B"], 3, 64)],
    "8 B, stage 3, 1,024 ranks": [workload(MODELS["8B"], 3, 1024)],
    "8 B with 8 layers, stage 3, 8 ranks": [workload(deeper(8), 3, 8)],
    "8 B with 128 layers, stage 3, 8 ranks": [workload(deeper(128), 3, 8)],
    "70 B, seven strategies, 64 ranks": [workload(BIG, stage, 64, zero) for stage, zero in STRATEGIES],
}

ON = ("--on", "8xH100-80GB")
COMMANDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "estimate 8 B, one row": (LLAMA_31_8B, ("estimate", *ON, "--stage", "2", "--no-levers")),
    "estimate 8 B, one row and its changes": (LLAMA_31_8B, ("estimate", *ON, "--stage", "2")),
    "estimate 8 B, all strategies": (LLAMA_31_8B, ("estimate", *ON, "--micro-batch", "1")),
    "estimate 70 B, all strategies": (BIG, ("estimate", *ON, "--nodes", "8", "--micro-batch", "1")),
    "plan 8 B, 8 x 80 GB": (LLAMA_31_8B, ("plan", *ON, "--global-batch", "64")),
    "plan 8 B with LoRA, 1 x 24 GB": (
        LLAMA_31_8B,
        ("plan", "--on", "1xRTX-4090", "--lora", "16", "--seq-len", "2048", "--global-batch", "16"),
    ),
    "plan 8 B, 1 x 24 GB, nothing fits": (
        LLAMA_31_8B,
        ("plan", "--on", "1xRTX-4090", "--seq-len", "65536", "--global-batch", "1"),
    ),
}
EXPECTED = (0, 65, 69)
"""Exit statuses: it fits, it does not, or it is too close to tell."""


def run_command(words: tuple[str, ...], model: Path, cache: Path) -> None:
    """Run a command; raise AssertionError for an unexpected exit status."""
    argv = [sys.executable, "-m", "zlaunch", words[0], str(model), *words[1:]]
    env = {**os.environ, "ZLAUNCH_CACHE": str(cache)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode in EXPECTED, done.stderr


def measured(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return a result, the wall time and the CPU time; seconds."""
    began, before = time.monotonic(), os.times()
    result = call()
    after = os.times()
    return result, time.monotonic() - began, sum(after[:4]) - sum(before[:4])


def main() -> None:
    """Print a line for each case: wall time, CPU time, and its ratio to the import."""
    argv = [sys.executable, "-W", "ignore", "-c", "import deepspeed, transformers"]
    _, seconds, imports = measured(lambda: subprocess.run(argv, check=True))
    print(f"| importing DeepSpeed and transformers | {seconds:.1f} | {imports:.1f} | 1.0 |", flush=True)

    def show(name: str, call: Callable[[], Any]) -> Any:
        result, seconds, cpu = measured(call)
        print(f"| {name} | {seconds:.1f} | {cpu:.1f} | {cpu / imports:.1f} |", flush=True)
        return result

    for name, workloads in WORKLOADS.items():
        if is_selected(name):
            forecasts = show(name, partial(rehearse, workloads))
            errors = [one.why_not_rehearsed or one.late_error for one in forecasts]
            print(*filter(None, errors), end="", flush=True)
    for name, (config, words) in COMMANDS.items():
        if is_selected(name):
            with tempfile.TemporaryDirectory() as place:
                model, cache = Path(place, "model"), Path(place, "cache")
                model.mkdir()
                (model / "config.json").write_text(json.dumps(config))
                show(name, partial(run_command, words, model, cache))
                show(f"{name}, again", partial(run_command, words, model, cache))


def is_selected(name: str) -> bool:
    """Whether a name contains one of WORDS."""
    return any(word in name for word in sys.argv[1:] or [""])


if __name__ == "__main__":
    main()
