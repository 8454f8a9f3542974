"""Programs that know nothing of zlaunch train as they are."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.launchers import FIRST_OF_EACH
from tests.running import Result, zlaunch

pytestmark = pytest.mark.job

ACCELERATE = """
import torch
from accelerate import Accelerator

accelerator = Accelerator()
torch.manual_seed(0)
net = torch.nn.Linear(8, 1)
data = torch.utils.data.TensorDataset(torch.arange(256.0).reshape(32, 8) / 256, torch.zeros(32, 1))
loader = torch.utils.data.DataLoader(data, batch_size=4)
net, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=0.05), loader)
seen = []
for x, y in loader:
    seen += x[:, 0].tolist()
    loss = (net(x) - y).pow(2).mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
print("saw", sorted(seen), flush=True)
"""

DDP = """
import torch
from torch.nn.parallel import DistributedDataParallel

{imports}
torch.distributed.init_process_group("gloo")
net = DistributedDataParallel(torch.nn.Linear(4, 4))
for _ in range(2):
    net(torch.ones(2, 4)).sum().backward()
"""

LOCAL_RANK = """
import argparse, deepspeed, torch

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
print("local rank", args.local_rank, flush=True)
net = torch.nn.Linear(4, 4)
adam = torch.optim.AdamW(net.parameters())
config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}}
engine, *_ = deepspeed.initialize(args=args, model=net, optimizer=adam, config=config)
engine.backward(engine(torch.ones(2, 4)).sum())
engine.step()
"""


SWITCH = """
import argparse, deepspeed, torch

parser = argparse.ArgumentParser()
parser.add_argument("--deepspeed", action="store_true", help="use DeepSpeed")
parser.add_argument("--ds_config", default="ds.json")
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
net = torch.nn.Linear(4, 4)
config = args.ds_config if args.deepspeed else None
engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
for _ in range(2):
    engine.backward(engine(torch.ones(2, 4)).sum())
    engine.step()
"""

PLUGIN = """
import argparse
import torch
from accelerate import Accelerator, DeepSpeedPlugin

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05)
args = parser.parse_args()
plugin = DeepSpeedPlugin(hf_ds_config="ds.json")
accelerator = Accelerator(deepspeed_plugin=plugin)
net = torch.nn.Linear(4, 4)
loader = torch.utils.data.DataLoader(torch.ones(16, 4), batch_size=2)
net, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=args.lr), loader)
for x in loader:
    accelerator.backward(net(x).sum())
    optimizer.step()
"""

DUMMY = """
import argparse
import torch
from accelerate import Accelerator
from accelerate.utils import DummyOptim, DummyScheduler

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05)
args = parser.parse_args()
accelerator = Accelerator()
net = torch.nn.Linear(4, 4)
optimizer = DummyOptim(net.parameters(), lr=args.lr)
scheduler = DummyScheduler(optimizer, total_num_steps=8, warmup_num_steps=2)
loader = torch.utils.data.DataLoader(torch.ones(16, 4), batch_size=2)
net, optimizer, loader, scheduler = accelerator.prepare(net, optimizer, loader, scheduler)
for x in loader:
    accelerator.backward(net(x).sum())
    optimizer.step()
    scheduler.step()
"""

ADAM = {"type": "AdamW", "params": {"lr": 0.05, "torch_adam": True}}
FILLED_IN = {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True}}
WARMUP = {"warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}


def train(folder: Path, source: str, *words: str) -> Result:
    (folder / "train.py").write_text(source)
    options = ("--gpus", "2", "--run-dir", "run", "--show-ranks", "all")
    return zlaunch("train", *options, "train.py", *words, cwd=folder)


def program(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run" / "ranks" / "rank-0.program.json").read_text())
    return found


def test_an_accelerate_script_trains_with_zero_on_a_cpu_each_rank_on_its_own_data(tmp_path: Path) -> None:
    done = train(tmp_path, ACCELERATE, "--stage", "3")
    assert done.status == 0, done.err
    engine = program(tmp_path)["engine"]
    assert (engine["stage"], engine["train_batch_size"]) == (3, 8)
    seen = [json.loads(line.partition("saw ")[2]) for line in done.out.splitlines() if "saw " in line]
    assert sorted(seen[0] + seen[1]) == [row * 8 / 256 for row in range(32)]
    assert "ZeRO stage 3, fp32, batch 8, AdamW" in zlaunch("runs", "show", "run", cwd=tmp_path).out


@pytest.mark.parametrize(
    ("source", "words", "ds_config"),
    [
        (SWITCH, ["--deepspeed", "--ds_config", "ds.json"], {"train_batch_size": 4, "optimizer": ADAM}),
        pytest.param(
            PLUGIN,
            [],
            {"train_micro_batch_size_per_gpu": "auto", "zero_allow_untested_optimizer": True},
            marks=pytest.mark.full,
        ),
        pytest.param(
            DUMMY,
            ["--ds-config", "ds.json"],
            {
                "train_micro_batch_size_per_gpu": "auto",
                "optimizer": FILLED_IN,
                "scheduler": {"type": "WarmupDecayLR", "params": WARMUP},
            },
            marks=pytest.mark.full,
        ),
    ],
    ids=["a flag of its own", "DeepSpeedPlugin", "DummyOptim"],
)
def test_the_script_of_a_tutorial_trains_with_its_ds_config_as_it_is(
    source: str, words: list[str], ds_config: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({**ds_config, "zero_optimization": {"stage": 1}}))
    done = train(tmp_path, source, *words)
    assert done.status == 0, done.err
    engine = program(tmp_path)["engine"]
    assert (engine["stage"], engine["train_batch_size"]) == (1, 4)


def test_a_run_without_an_engine_is_not_shown_as_one_with_zero(tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    done = train(tmp_path, DDP.format(imports="import mine"), "--stage", "3", "--no-ask")
    told = " ".join(done.err.split())
    assert (
        done.status,
        "the script trained with DistributedDataParallel, so the ds_config had no effect" in told,
    ) == (
        0,
        True,
    ), told


def test_a_script_that_wants_its_local_rank_gets_it_and_keeps_its_own_ds_config(tmp_path: Path) -> None:
    done = train(tmp_path, LOCAL_RANK, "--stage", "3")
    assert done.status == 0, done.err
    assert {line for line in done.out.splitlines() if "local rank" in line} == {
        "[0] local rank 0",
        "[1] local rank 1",
    }
    assert program(tmp_path)["engine"]["stage"] == 1


@pytest.mark.parametrize("launcher", FIRST_OF_EACH)
def test_files_named_like_modules_of_python_are_imported_only_by_the_script(
    tmp_path: Path, launcher: str
) -> None:
    for name in ("json", "psutil", "random", "resource"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError\n")
    (tmp_path / "calendar.py").write_text("print('this calendar')\n")
    result = train(tmp_path, "import calendar", "--launcher", launcher)
    assert (result.status, "this calendar" in result.out) == (0, True), result.err


def test_a_script_and_its_arguments_may_have_any_name(tmp_path: Path) -> None:
    (tmp_path / "-s.py").write_text("import os, sys\nprint(os.fsencode(sys.argv[1]), flush=True)\n")
    result = zlaunch("train", "--gpus", "1", "./-s.py", "--", os.fsdecode(b"a\xff"), cwd=tmp_path)
    assert (result.status, "b'a\\xff'" in result.out) == (0, True), result.err
