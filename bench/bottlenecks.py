"""Make bottlenecks in real jobs, and compare what zlaunch says of each with what was made.

    python -m bench.bottlenecks [--only NAME] [--loop NAME] [--launcher NAME] [--healthy N]

Each bottleneck is made under both launchers, in a Trainer, in a loop with accelerate and in one with an
engine of DeepSpeed, on ranks that compute on this machine's CPU. Then jobs without a bottleneck run, of which
nothing may be said. A verdict is right if the first one has the expected code and names what was made. Run it
on idle cores, as another program on them is a bottleneck itself, and as root, for the network namespace of a
slow link.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODEL = """
import os, time
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
from transformers import GPT2Config, GPT2LMHeadModel

RANK = int(os.environ["RANK"])
if MADE["pinned"]:
    os.sched_setaffinity(0, {RANK})
torch.set_num_threads(1)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, at):
        time.sleep(MADE["of_a_sample"])
        ids = torch.full((MADE["length"],), at)
        return {"input_ids": ids, "labels": ids}


class Net(GPT2LMHeadModel):
    num_passes = 0

    def forward(self, input_ids, labels):
        self.num_passes += 1
        time.sleep(MADE["of_a_pass"])
        if RANK == MADE["slow_rank"] or self.num_passes > MADE["jumps_after"]:
            time.sleep(MADE["slower_by"])
        return super().forward(input_ids, labels=labels)


def slowed(step):
    def slow_step(self, *args, **kwargs):
        time.sleep(MADE["of_an_update"])
        return step(self, *args, **kwargs)

    return slow_step


if MADE["of_an_update"]:
    for cls in (DeepSpeedCPUAdam, torch.optim.AdamW):
        cls.step = slowed(cls.step)
shape = {"n_layer": MADE["layers"], "n_embd": MADE["width"], "n_head": 4}
net = Net(GPT2Config(vocab_size=512, bos_token_id=0, eos_token_id=0, **shape))
if MADE["checkpointing"]:
    net.gradient_checkpointing_enable()
"""
LOOPS = {
    "trainer": """
from transformers import HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
Trainer(net, args, train_dataset=Rows()).train()
""",
    "accelerate": """
from accelerate import Accelerator
accelerator = Accelerator()
loader = torch.utils.data.DataLoader(Rows(), batch_size=4)
net, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-4), loader)
for step, batch in enumerate(loader):
    accelerator.backward(net(**batch).loss)
    optimizer.step()
    optimizer.zero_grad()
    if MADE["saves_every"] and step % MADE["saves_every"] == 0:
        accelerator.save_state("state")
    if step == MADE["steps"]:
        break
""",
    "engine": """
import argparse, deepspeed
parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int)
engine, *_ = deepspeed.initialize(args=parser.parse_args(), model=net, model_parameters=net.parameters())
for batch in torch.utils.data.DataLoader(Rows(), batch_size=4):
    engine.backward(engine(**batch).loss)
    engine.step()
    if MADE["saves_every"] and engine.global_steps % MADE["saves_every"] == 0:
        engine.save_checkpoint("state")
    if engine.global_steps == MADE["steps"]:
        break
""",
}
HEALTHY: dict[str, Any] = {
    "of_a_sample": 0.0,
    "of_a_pass": 0.0,
    "of_an_update": 0.0,
    "slow_rank": -1,
    "slower_by": 0.1,
    "jumps_after": 1 << 30,
    "saves_every": 0,
    "checkpointing": False,
    "pinned": False,
    "length": 256,
    "layers": 2,
    "width": 128,
    "steps": 50,
}
"""Seconds, numbers of steps, and the shape of the model."""


@dataclass(frozen=True)
class Bottleneck:
    """Something that makes a job slow, and what zlaunch has to say of it."""

    code: str | None
    """Of the first verdict; None if nothing may be said."""
    made: dict[str, Any] = field(default_factory=dict)
    """How the script differs from `HEALTHY`."""
    options: Sequence[str] = ()
    """Of `zlaunch train`."""
    stage: int = 1
    num_ranks: int = 2
    says: str = ""
    """A part of the verdict's cause or facts."""
    competes: bool = False
    """Whether other programs compute on the core of rank 1."""
    link: str = ""
    """What the link between the ranks carries, for `tc`."""
    bucket: int = 100_000
    """Elements of a Trainer's buckets of gradients, which "auto" would make 16,384 for this model."""


BOTTLENECKS = {
    "slow loader": Bottleneck("waiting-for-data", {"of_a_sample": 0.03}),
    "slow rank": Bottleneck("slow-rank", {"slow_rank": 1}, says="rank 1 on "),
    "load on the core of a rank": Bottleneck(
        "slow-rank", {"pinned": True}, says="its main thread had ", competes=True
    ),
    "slow link": Bottleneck("exposed-communication", link="50mbit"),
    "slow CPU optimizer": Bottleneck(
        "optimizer-on-cpu", {"of_an_update": 0.1}, ("--offload", "cpu"), stage=2
    ),
    "NVMe": Bottleneck(
        "waiting-for-nvme",
        {"length": 32, "layers": 4, "width": 768, "steps": 24},
        ("--offload", "nvme", "--nvme", "nvme"),
        stage=3,
        num_ranks=1,
    ),
    "needless checkpointing": Bottleneck("needless-recomputation", {"checkpointing": True}),
    "tiny batch": Bottleneck("small-micro-batch", {"length": 2, "width": 64}),
    "checkpoints too often": Bottleneck(
        "saves-often", {"saves_every": 2, "steps": 40, "length": 64, "width": 512}
    ),
    "jump at step 30": Bottleneck(
        "slower-steps", {"jumps_after": 30, "slower_by": 0.4}, says="from step 31 on"
    ),
}
HEALTHY_JOB = Bottleneck(None, {"length": 512}, bucket=500_000_000)
"""Its ranks compute long and communicate seldom: with smaller buckets, communication is a bottleneck."""
LAUNCHERS = ("torchrun", "deepspeed")


@dataclass(frozen=True)
class Job:
    """A way to run a bottleneck."""

    loop: str
    launcher: str

    def command(self, bottleneck: Bottleneck) -> list[str]:
        """Return the words after `zlaunch`."""
        made = {**HEALTHY, **bottleneck.made}
        argv = ["train", "train.py", "--run-dir", "run", "--launcher", self.launcher]
        argv += ["--gpus", str(bottleneck.num_ranks), "--stage", str(bottleneck.stage), "--precision", "fp32"]
        argv += bottleneck.options
        if self.loop == "trainer":
            argv += ["--set", f"zero_optimization.reduce_bucket_size={bottleneck.bucket}"]
            return [*argv, "--", *_trainer_arguments(made)]
        argv += ["--set", "train_micro_batch_size_per_gpu=4"]
        if self.loop == "accelerate":
            return [*argv, *_ANY_OPTIMIZER]
        return [*argv, "--set", f"optimizer={json.dumps(_adam(bottleneck))}"]


_ANY_OPTIMIZER = ("--set", "zero_force_ds_cpu_optimizer=false")


def _trainer_arguments(made: dict[str, Any]) -> list[str]:
    arguments = ["--max_steps", str(made["steps"]), "--per_device_train_batch_size", "4"]
    if made["saves_every"]:
        return [*arguments, "--save_steps", str(made["saves_every"])]
    return [*arguments, "--save_strategy", "no"]


def _adam(bottleneck: Bottleneck) -> dict[str, Any]:
    return {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": not bottleneck.options}}


def verdicts(folder: Path, job: Job, bottleneck: Bottleneck) -> list[dict[str, Any]]:
    """Run a job with a bottleneck in a folder, and return what limits its speed, the most expensive first."""
    made = {**HEALTHY, **bottleneck.made}
    (folder / "train.py").write_text(f"MADE = {made!r}\n{MODEL}{LOOPS[job.loop]}")
    (folder / "nvme").mkdir()
    with _competition(bottleneck):
        _zlaunch(folder, job.command(bottleneck), _network(bottleneck))
    answer = _zlaunch(folder, ["runs", "why", "./run", "--json"])
    found: list[dict[str, Any]] = json.loads(answer)["speed"]
    return found


def is_right(bottleneck: Bottleneck, found: Sequence[dict[str, Any]]) -> bool:
    """Say whether the first verdict is that of the bottleneck."""
    if not found or bottleneck.code is None:
        return not found and bottleneck.code is None
    verdict = found[0]["verdict"]
    texts = (verdict["cause"], *verdict["facts"])
    return verdict["code"] == bottleneck.code and any(bottleneck.says in text for text in texts)


@contextmanager
def _competition(bottleneck: Bottleneck) -> Iterator[None]:
    programs = []
    if bottleneck.competes:
        source = "import os\nos.sched_setaffinity(0, {1})\nwhile True: pass"
        programs = [subprocess.Popen([sys.executable, "-c", source]) for _ in range(2)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def _network(bottleneck: Bottleneck) -> list[str]:
    if not bottleneck.link:
        return []
    shaped = f"tc qdisc add dev lo root tbf rate {bottleneck.link} burst 64kb latency 400ms"
    return ["unshare", "--net", "sh", "-c", f'ip link set lo mtu 1500 up && {shaped} && exec "$@"', "sh"]


def _zlaunch(folder: Path, words: Sequence[str], prefix: Sequence[str] = ()) -> str:
    argv = [*prefix, sys.executable, "-m", "zlaunch", *words]
    env = {**os.environ, "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line per job, and how many verdicts are right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=BOTTLENECKS)
    parser.add_argument("--loop", action="append", choices=LOOPS)
    parser.add_argument("--launcher", action="append", choices=LAUNCHERS)
    parser.add_argument("--healthy", type=int, default=20, help="jobs without a bottleneck")
    options = parser.parse_args(argv)
    pairs = itertools.product(options.loop or LOOPS, options.launcher or LAUNCHERS)
    jobs = [Job(loop, launcher) for loop, launcher in pairs]
    rows = [(name, job) for name in options.only or BOTTLENECKS for job in jobs]
    rows += [("none", jobs[number % len(jobs)]) for number in range(options.healthy)]
    print("| bottleneck | loop | launcher | said first | share | right |\n|---|---|---|---|--:|---|")
    num_right = sum(_row(name, job) for name, job in rows)
    print(f"\n{num_right} of {len(rows)} are right")


def _row(name: str, job: Job) -> bool:
    bottleneck = BOTTLENECKS.get(name, HEALTHY_JOB)
    with tempfile.TemporaryDirectory() as folder:
        found = verdicts(Path(folder), job, bottleneck)
    right = is_right(bottleneck, found)
    cause, share = "nothing", ""
    if found:
        cause, share = found[0]["verdict"]["cause"], f"{found[0]['share']:.0%}"
    word = "yes" if right else "**no**"
    print(f"| {name} | {job.loop} | {job.launcher} | {cause} | {share} | {word} |", flush=True)
    return right


if __name__ == "__main__":
    main()
