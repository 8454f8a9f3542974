"""How long rehearsals take, beside importing what they run: `python -m bench.rehearsal_speed [WORDS]`.

Asks the questions that contain one of WORDS, else all. What counts is the ratio to the import in the same
run, not the seconds of one machine; and where others work too, the seconds of the processor.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.gpu_cells import MODELS
from zlaunch.memory.workload import Workload
from zlaunch.rehearse import rehearse

BIG = {
    **MODELS["8B"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}
CPU = {"device": "cpu", "pin_memory": True}
LADDER: tuple[tuple[int, dict[str, Any]], ...] = (
    (3, {"offload_optimizer": CPU, "offload_param": CPU}),
    (3, {"offload_optimizer": CPU}),
    (3, {}),
    (2, {"offload_optimizer": CPU}),
    (2, {}),
    (1, {}),
    (0, {}),
)


def workload(model: dict[str, Any], stage: int, ranks: int, zero: dict[str, Any] | None = None) -> Workload:
    """Describe a rank with micro-batches of one sequence of 2,048 tokens, and activation checkpointing."""
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
    """Make the 8 B model deeper or shallower."""
    return {**MODELS["8B"], "num_hidden_layers": num_layers}


QUESTIONS: dict[str, list[Workload]] = {
    "8 B, stage 2, 8 ranks": [workload(MODELS["8B"], 2, 8)],
    "8 B, stage 3, 8 ranks": [workload(MODELS["8B"], 3, 8)],
    "8 B, stage 3, 64 ranks": [workload(MODELS["8B"], 3, 64)],
    "8 B, stage 3, 1,024 ranks": [workload(MODELS["8B"], 3, 1024)],
    "8 B with 8 layers, stage 3, 8 ranks": [workload(deeper(8), 3, 8)],
    "8 B with 128 layers, stage 3, 8 ranks": [workload(deeper(128), 3, 8)],
    "70 B, ladder of seven, 64 ranks": [workload(BIG, stage, 64, zero) for stage, zero in LADDER],
}


def measured(ask: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return an answer, the seconds until it came, and those that processors worked for it."""
    began, before = time.monotonic(), os.times()
    answer = ask()
    after = os.times()
    return answer, time.monotonic() - began, sum(after[:4]) - sum(before[:4])


def main() -> None:
    """Print one line for each question."""
    argv = [sys.executable, "-W", "ignore", "-c", "import deepspeed, transformers"]
    _, seconds, imports = measured(lambda: subprocess.run(argv, check=True))
    print(f"| importing DeepSpeed and transformers | {seconds:.1f} | {imports:.1f} | 1.0 |", flush=True)
    for name, workloads in QUESTIONS.items():
        if not any(word in name for word in sys.argv[1:] or [""]):
            continue
        forecasts, seconds, worked = measured(partial(rehearse, workloads))
        wrong = [one.why_not_rehearsed or one.late_error for one in forecasts]
        ratio = worked / imports
        print(f"| {name} | {seconds:.1f} | {worked:.1f} | {ratio:.1f} |", *filter(None, wrong), flush=True)


if __name__ == "__main__":
    main()
