"""Compare the choice of `zlaunch plan --measure` with the best of all configurations: six small questions.

    python -m bench.measured_choice [QUESTION…]
    python -m bench.measured_choice --autotuner [QUESTION…]    # with DeepSpeed's, which takes minutes more

Two CPU ranks. The exhaustive measurement continues that of the choice, so both judge by the same runs.
The autotuner compares all stages, as zlaunch does, instead of the micro-batches of one stage, its default. It
gets one rank, more of which it cannot start on a CPU, and needs the package `tabulate`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

STEPS: Final = 12
SCRIPT: Final = """
import argparse
import deepspeed
import torch
from torch import nn

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--model", default="wide")
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
torch.set_num_threads(1)
MODELS = {
    "wide": lambda: nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4))),
    "deep": lambda: nn.Sequential(*(nn.Linear(128, 128) for _ in range(48))),
    "words": lambda: nn.Sequential(nn.Embedding(20_000, 128), nn.Linear(128, 128)),
    "attention": lambda: nn.Sequential(
        nn.Embedding(512, 128), *(nn.TransformerEncoderLayer(128, 4, 512) for _ in range(2))
    ),
}
net = MODELS[args.model]()
engine, *_ = deepspeed.initialize(args=args, model=net, model_parameters=net.parameters())
size = engine.train_micro_batch_size_per_gpu()
for _ in range(200 * engine.gradient_accumulation_steps()):
    inputs = torch.randint(0, 512, (size, 64))
    if args.model in ("wide", "deep"):
        inputs = torch.randn(size, net[0].in_features)
    engine.backward(engine(inputs).square().mean())
    engine.step()
"""
ADAM: Final = ("--set", 'optimizer={"type": "AdamW", "params": {"lr": 0.001, "torch_adam": true}}')
OWN: Final = ("train.py", "--precision", "fp32", *ADAM)
QUESTIONS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "sine": (("own_loop",), ()),
    "wide": (OWN, ("--model", "wide")),
    "deep": (OWN, ("--model", "deep")),
    "words": (OWN, ("--model", "words")),
    "attention": (OWN, ("--model", "attention")),
    "llama": (("causal_lm",), ("--sequence_length", "32")),
}
"""Name → the program with options of zlaunch, and the arguments of the program."""
BATCHES: Final = {"sine": 4, "attention": 4}
"""Global batches of more than a sample of each rank: there, the micro-batch is chosen, too."""
AUTOTUNED: Final = {
    "train_micro_batch_size_per_gpu": "auto",
    "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "torch_adam": True}},
    "zero_optimization": {"stage": "all"},
    "autotuning": {"enabled": True, "fast": False, "start_profile_step": 2, "end_profile_step": 8},
}


@dataclass(frozen=True)
class Answer:
    """What one measurement found."""

    minutes: float
    measured: list[dict[str, Any]]

    @property
    def num_runs(self) -> int:
        """Runs of all configurations."""
        return sum(len(row["runs"]) for row in self.measured)

    def seconds(self, options: str) -> float:
        """The measured time of a step of one configuration."""
        return float(next(row["seconds"] for row in self.measured if row["options"] == options))


def ask(folder: Path, name: str, top: int) -> Answer:
    """Measure a question with `zlaunch plan --measure`."""
    program, args = QUESTIONS[name]
    batch = str(BATCHES.get(name, 2))
    limits = [
        "--gpus",
        "2",
        "--global-batch",
        batch,
        "--steps",
        str(STEPS),
        "--top",
        str(top),
    ]
    argv = [sys.executable, "-m", "zlaunch", "plan", *program, "--measure", *limits, "--json", "--", *args]
    env = {**os.environ, "DS_ACCELERATOR": "cpu", "ZLAUNCH_CACHE": str(folder / "cache")}
    env["PYTHONPATH"] = str(Path(__file__).parents[1])
    began = time.monotonic()
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return Answer((time.monotonic() - began) / 60, json.loads(done.stdout)["measured"])


def autotune(folder: Path, name: str) -> str:
    """Run DeepSpeed's autotuner on the same program; return its minutes and runs, or why it failed."""
    config, (program, args) = folder / "tuned.json", QUESTIONS[name]
    if not program[0].endswith(".py"):
        return "its script is a Trainer's or has no optimizer in the ds_config"
    config.write_text(json.dumps(AUTOTUNED))
    launcher = [str(Path(sys.executable).with_name("deepspeed")), "--num_gpus", "1"]
    env = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    began = time.monotonic()
    argv = [*launcher, "--autotuning", "run", program[0], "--deepspeed_config", config.name, *args]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    minutes = (time.monotonic() - began) / 60
    found = [*(folder / "autotuning_results").rglob("metrics.json")]
    if done.returncode or not found:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        return f"failed after {minutes:.1f} min: {''.join(last)[:90]}"
    return f"{minutes:.1f} min, {len(found)} runs"


def main(names: list[str], with_autotuner: bool) -> None:
    """Print a row for each question."""
    columns = ["question", "choice", "runs", "min", "all", "of all", "min", "best", "choice / best"]
    if with_autotuner:
        columns.append("autotuner")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    for name in names:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "train.py").write_text(SCRIPT)
            chosen = ask(folder, name, 3)
            every = ask(folder, name, 100)
            choice, best = chosen.measured[0]["options"], every.measured[0]
            row = [name, f"`{choice}`", chosen.num_runs, f"{chosen.minutes:.1f}", len(every.measured)]
            row += [every.num_runs, f"{chosen.minutes + every.minutes:.1f}", f"`{best['options']}`"]
            row.append(f"{every.seconds(choice) / best['seconds']:.3f}")
            if with_autotuner:
                row.append(autotune(folder, name))
        print(f"| {' | '.join(map(str, row))} |", flush=True)
    print(f"load average: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    asked = [word for word in sys.argv[1:] if not word.startswith("--")]
    main(asked or [*QUESTIONS], "--autotuner" in sys.argv[1:])
