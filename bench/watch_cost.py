"""Measure the overhead of monitoring on a training step, within one run of `zlaunch train`.

    python -m bench.watch_cost [STEPS]    # a multiple of 4

DeepSpeed trains on two ranks. Half of the steps use the functions of the engine, of torch.distributed and of
the DataLoader as the hook wrapped them, the other half the original ones, in turn and on the same machine.
The CPU time of zlaunch's own processes is read from the kernel.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TRAINING = """
import json, os, sys, time
import deepspeed, psutil, torch
from deepspeed.runtime.engine import DeepSpeedEngine

torch.manual_seed(0)
torch.set_num_threads(1)
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
c10d, loading = torch.distributed.distributed_c10d, torch.utils.data.dataloader
holders = (DeepSpeedEngine, torch.distributed, c10d, c10d.Work, loading._BaseDataLoaderIter)
watched = {
    (holder, name): value
    for holder in holders
    for name, value in vars(holder).items()
    if "zlaunch" in getattr(getattr(value, "__code__", None), "co_filename", "")
}
bare = {place: value.__wrapped__ for place, value in watched.items()}
parents = psutil.Process().parents()
around = parents[: [p.pid for p in parents].index(int(sys.argv[3]))]  # up to the bench


def worked():
    return sum(sum(p.cpu_times()[:2]) for p in around)


samples = torch.utils.data.TensorDataset(torch.randint(0, 512, (4 * int(sys.argv[1]), 64)))
batches = iter(torch.utils.data.DataLoader(samples, batch_size=4))
took = {True: [], False: []}
busy = {True: [], False: []}
before, start = worked(), time.perf_counter()
for number in range(int(sys.argv[1])):
    is_watched = number % 4 in (0, 3)
    for (holder, name), value in (watched if is_watched else bare).items():
        setattr(holder, name, value)
    began, had = time.perf_counter(), time.thread_time()
    (ids,) = next(batches)
    engine.backward(engine(ids).square().mean())
    engine.step()
    took[is_watched].append(time.perf_counter() - began)
    busy[is_watched].append(time.thread_time() - had)
answer = {
    "watched": took[True],
    "watched_cpu": busy[True],
    "bare_cpu": busy[False],
    "bare": took[False],
    "functions": len({value for value in watched.values()}),
    "programs": len(around),
    "share": (worked() - before) / (time.perf_counter() - start),
}
if torch.distributed.get_rank() == 0:
    with open(sys.argv[2], "w") as file:
        json.dump(answer, file)
"""


def main(steps: int) -> None:
    """Train once; print median step times, quartiles of their ratios, and the CPU time of other processes."""
    found = _measured(steps)
    pairs = zip(found["watched"], found["bare"], strict=True)
    low, ratio, high = statistics.quantiles([watched / bare for watched, bare in pairs], n=4)
    step = {kind: statistics.median(found[kind]) * 1e3 for kind in ("bare", "watched")}
    print(f"{found['functions']} functions are wrapped")
    print(f"a step: {step['bare']:.2f} ms bare, {step['watched']:.2f} ms watched")
    medians = step["watched"] / step["bare"]
    print(f"ratio: {medians:.4f} of the medians; {ratio:.4f} of pairs ({low:.3f}-{high:.3f})")
    cpu = {kind: statistics.median(found[f"{kind}_cpu"]) * 1e3 for kind in ("bare", "watched")}
    times = ", ".join(f"{value:.2f} ms {kind}" for kind, value in cpu.items())
    print(f"of them on a CPU: {times}; ratio {cpu['watched'] / cpu['bare']:.4f}")
    print(f"{found['programs']} processes of zlaunch: {found['share']:.2%} of one core")
    print(f"load average: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def _measured(steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        script, answer = Path(folder) / "train.py", Path(folder) / "answer.json"
        script.write_text(TRAINING)
        zlaunch = [sys.executable, "-m", "zlaunch", "train", str(script), "--gpus", "2"]
        run_dir = ["--run-dir", str(Path(folder) / "run")]
        argv = [*zlaunch, *run_dir, "--", str(steps), str(answer), str(os.getpid())]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        found: dict[str, Any] = json.loads(answer.read_text())
        return found


if __name__ == "__main__":
    main((int(sys.argv[1]) if len(sys.argv) > 1 else 1000) // 4 * 4)
