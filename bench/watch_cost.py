"""What the watch costs a training step: the same training of DeepSpeed's with the hook and without, in turns.

    python -m bench.watch_cost [ROUNDS]

In each round both train the same steps, one after the other; the ratio is that of their median steps.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from zlaunch.inside import hook_environment

STEPS = 120

TRAINING = """
import json, sys, time
import deepspeed, torch
torch.manual_seed(0)
torch.set_num_threads(1)
deepspeed.init_distributed("gloo", verbose=False)
net = torch.nn.Sequential(
    torch.nn.Embedding(512, 256), *(torch.nn.TransformerEncoderLayer(256, 4, 1024) for _ in range(2))
)
config = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
    "steps_per_print": 1 << 30,
}
engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
ids = torch.randint(0, 512, (4, 64))
took = []
for _ in range(int(sys.argv[1])):
    began = time.perf_counter()
    engine.backward(engine(ids).square().mean())
    engine.step()
    took.append(time.perf_counter() - began)
print(json.dumps(took))
"""


def main(rounds: int) -> None:
    """Train in turns and print the median step of each, and the median of the rounds' ratios."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(TRAINING)
        (Path(folder) / "ranks").mkdir()
        ratios = []
        for number in range(rounds):
            order = (False, True) if number % 2 else (True, False)
            step = {watched: _median_step(Path(folder), watched) for watched in order}
            ratios.append(step[True] / step[False])
            print(f"round {number + 1}: {step[False] * 1e3:.2f} ms without, {step[True] * 1e3:.2f} ms with")
    print(
        f"ratio of the median step: {statistics.median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f})"
    )
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def _median_step(folder: Path, watched: bool) -> float:
    single = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    env = {**os.environ, **single, "DS_ACCELERATOR": "cpu", "DS_IGNORE_CUDA_DETECTION": "1"}
    hook = hook_environment(folder, env) if watched else {}
    argv = [sys.executable, str(folder / "train.py"), str(STEPS)]
    done = subprocess.run(argv, env={**env, **hook}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    if watched and json.loads((folder / "ranks" / "rank-0.pulse.json").read_text())["step"] != STEPS:
        sys.exit("the watch saw nothing")
    times: list[float] = json.loads(done.stdout.splitlines()[-1])
    return statistics.median(times[STEPS // 10 :])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 6)
