"""The rehearsal of a program says, to the byte, what each phase of it really holds in memory."""

import json
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tests.estimate.rehearsal.cells import BUCKETS, NUM_RANKS
from tests.estimate.rehearsal.test_equal_to_real_ranks import environment
from tests.running import ROOT
from zlaunch.estimate.program import ProgramOrder, RehearsedProgram, result_of
from zlaunch.estimate.rehearse import ENVIRONMENT
from zlaunch.hosts.adapters import adapter_of
from zlaunch.process import ours
from zlaunch.worker import cleanup

pytestmark = pytest.mark.job

DISTIL = """\
import argparse

import deepspeed
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, LlamaConfig

SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "vocab_size": 500}


class Head(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight):
        ctx.save_for_backward(hidden, weight)
        return hidden @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        hidden, weight = ctx.saved_tensors
        of_weight = torch.zeros(weight.shape, dtype=weight.dtype, device=weight.device)
        of_weight += grad.flatten(0, 1).t() @ hidden.flatten(0, 1)
        return grad @ weight, of_weight


parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--student")
args = parser.parse_args()

teacher = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES, num_hidden_layers=3))
teacher.requires_grad_(False).eval()
student = AutoModelForCausalLM.from_pretrained(args.student)
student.model.embed_tokens.requires_grad_(False)
student.lm_head.forward = lambda hidden: Head.apply(hidden, student.lm_head.weight)
optimizer = torch.optim.AdamW([p for p in student.parameters() if p.requires_grad], lr=1e-3)
engine, *_ = deepspeed.initialize(args=args, model=student, optimizer=optimizer)
teacher.to(engine.device)
tokens = torch.randint(500, (64, 24))
while True:
    for ids in DataLoader(tokens, batch_size=engine.train_micro_batch_size_per_gpu()):
        ids = ids.to(torch.device("cpu", 0))
        with torch.no_grad():
            target = teacher(input_ids=ids, use_cache=False).logits.softmax(-1)
        logits = engine(input_ids=ids, use_cache=False).logits
        loss = -(target * logits.float().log_softmax(-1)).sum(-1).mean()
        engine.backward(loss)
        engine.step()
        print(f"loss {loss.item():.3f}")
"""
"""A loop of its own with the engine: a student, whose weights are in a file, learns from a frozen teacher.

Its head makes a gradient itself, as fused losses do.
"""
SHARING = """\
import deepspeed
import torch
from accelerate import ParallelismConfig
from accelerate.utils import DeepSpeedSequenceParallelConfig
from transformers import AutoModelForCausalLM, HfArgumentParser, LlamaConfig, Trainer, TrainingArguments

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 500}

deepspeed.init_distributed(verbose=False)  # as accelerate does on a GPU
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
if SEQUENCES:
    handler = DeepSpeedSequenceParallelConfig(sp_attn_implementation="sdpa")
    args.parallelism_config = ParallelismConfig(
        sp_backend="deepspeed", sp_size=2, dp_replicate_size=1, sp_handler=handler
    )
ids = torch.arange(32)
row = {"input_ids": ids, "labels": ids}
if SEQUENCES:
    row["position_ids"] = ids
config = LlamaConfig(**SIZES, num_hidden_layers=2, use_cache=False)
model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
Trainer(model=model, args=args, train_dataset=[row] * 64).train()
"""
"""A Trainer whose ranks share layers, as the ds_config says, or sequences."""
LAYER = {
    **{f"self_attn.{name}_proj": (128, 128) for name in "qkvo"},
    "mlp.gate_proj": (256, 128),
    "mlp.up_proj": (256, 128),
    "mlp.down_proj": (128, 256),
    "input_layernorm": (128,),
    "post_attention_layernorm": (128,),
}
"""Weights of a layer of the student."""
TRAINER = str(ROOT / "recipes/causal_lm.py")
TRAINED = ("--use_cpu", "True", "--bf16", "True", "--per_device_train_batch_size", "4", "--max_steps", "9")

Levels = dict[str, tuple[int, int]]
"""Phase → the most that was held in it, and what was held at its end; bytes."""


def ds_config(folder: Path, stage: int, **keys: Any) -> str:
    file = folder / f"stage{stage}-{'-'.join(keys)}.json"
    zero = {"zero_optimization": {"stage": stage, **BUCKETS}, "bf16": {"enabled": True}}
    file.write_text(json.dumps({**zero, **keys}))
    return str(file)


def write_student(folder: Path) -> None:
    """Write a Llama of two layers, whose head is missing: it is then made anew."""
    shapes = {"embed_tokens": (500, 128), "norm": (128,)}
    for number in range(2):
        shapes |= {f"layers.{number}.{name}": shape for name, shape in LAYER.items()}
    head, size = {}, 0
    for name, shape in shapes.items():
        begin, size = size, size + 4 * prod(shape)
        head[f"model.{name}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": (begin, size)}
    text = json.dumps(head).encode()
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "vocab_size": 500}
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, **sizes}
    (folder / "config.json").write_text(json.dumps(config))


def command(name: str, folder: Path) -> list[str]:
    program, stage = name.split(maxsplit=1)[0], int(name.rsplit(maxsplit=1)[-1])
    if program == "distil":
        file = ds_config(folder, stage, train_micro_batch_size_per_gpu=4, gradient_accumulation_steps=2)
        script = folder / "distil.py"
        script.write_text(DISTIL)
        write_student(folder / "student")
        return [str(script), "--deepspeed_config", file, "--student", str(folder / "student")]
    keys = ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps")
    auto = dict.fromkeys(keys, "auto")
    if program in ("layers", "sequences"):
        shared = {"tensor_parallel": {"autotp_size": NUM_RANKS}} if program == "layers" else {}
        script = folder / f"{program}.py"
        script.write_text(SHARING.replace("SEQUENCES", str(program == "sequences")))
        file = ds_config(folder, stage, **auto, **shared)
        return [str(script), "--deepspeed", file, *TRAINED, "--output_dir", str(folder / "never")]
    file = ds_config(folder, stage, **auto)
    accumulated = ("--gradient_accumulation_steps", str({2: 5, 3: 1}[stage]))
    return [TRAINER, "--deepspeed", file, *TRAINED, *accumulated, "--output_dir", str(folder / "never")]


def start(argv: Sequence[str], rank: int) -> subprocess.Popen[bytes]:
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    return subprocess.Popen(argv, cwd=ROOT, env={**environment(rank), **ENVIRONMENT, **rendezvous})


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    """Run the chosen programs on the same real ranks, one after the other."""
    functions = [item for item in request.session.items if isinstance(item, pytest.Function)]
    names = [str(item.callspec.params["name"]) for item in functions if item.path == request.path]
    folder = tmp_path_factory.mktemp("real")
    train([command(name, folder) for name in names], folder)
    return {
        name: [json.loads((folder / f"{number}.{rank}.json").read_text()) for rank in range(NUM_RANKS)]
        for number, name in enumerate(names)
    }


def train(programs: Sequence[Sequence[str]], folder: Path) -> None:
    (folder / "programs.json").write_text(json.dumps(programs))
    module = "tests.estimate.rehearsal.real_program"
    argv = [sys.executable, "-m", module, str(folder / "programs.json"), str(folder)]
    ranks = [start(argv, rank) for rank in range(NUM_RANKS)]
    try:
        assert [rank.wait() for rank in ranks] == [0] * NUM_RANKS
    finally:
        for started in ranks:
            started.kill()
        cleanup.delete((), (cleanup.buffer_of(rank, environment(rank)) for rank in range(NUM_RANKS)))


def rehearse(words: Sequence[str], folder: Path) -> list[RehearsedProgram]:
    """Rehearse each rank of a program."""
    ranks = tuple(range(NUM_RANKS))
    order = ProgramOrder(tuple(words), NUM_RANKS, NUM_RANKS, 0, 0, accelerator="cpu", ranks=ranks)
    (folder / "order.json").write_text(json.dumps(asdict(order)))
    module = "zlaunch.estimate.rehearsal.program"
    assert start(ours(module, str(folder / "order.json"), str(folder)), 0).wait() == 0
    results = [result_of(folder, rank).read_bytes() for rank in ranks]
    return [adapter_of(RehearsedProgram).validate_json(result) for result in results]


def measured(answer: dict[str, Any]) -> Levels:
    assert "failure" not in answer, answer["failure"]
    phases = {name: level for name, level in answer["tensors"].items() if name not in ("left", "end")}
    return {name: (level["peak"], level["end"]) for name, level in phases.items()}


def foretold(result: RehearsedProgram) -> Levels:
    assert result.forecast is not None, result.error
    return {phase.name: (allocated(phase.peak), allocated(phase.end)) for phase in result.forecast.phases}


def allocated(held: Mapping[str, int]) -> int:
    """Return what tensors have, with the ends of buckets that are never written."""
    return held.get("addressed", held.get("pageable", 0))


def table(real: Levels, rehearsed: Levels) -> str:
    rows = [f"{name:12} {real[name]} {rehearsed.get(name)}" for name in real]
    return "\n".join(rows)


@pytest.mark.parametrize(
    "name",
    [
        "causal_lm at stage 2",
        "distil at stage 3",
        pytest.param("layers at stage 2", marks=pytest.mark.full),
        pytest.param("sequences at stage 3", marks=pytest.mark.full),
        pytest.param("causal_lm at stage 3", marks=pytest.mark.full),
        pytest.param("distil at stage 2", marks=pytest.mark.full),
    ],
)
def test_the_rehearsal_of_a_program_says_to_the_byte_what_it_really_holds(
    name: str, trained: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    real = [measured(answer) for answer in trained[name]]
    rehearsed = [foretold(result) for result in rehearse(command(name, tmp_path), tmp_path)]
    shown = "\n".join(map(table, real, rehearsed))
    assert rehearsed == real, f"{name}\n{shown}"
