"""Trainer arguments, and every "auto" they fill in, against the installed transformers."""

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contract.trainer_side import NEEDED, all_auto, parser, trainer_fills
from tests.each import each
from tests.making import WRITTEN
from zlaunch.config.resolve.autos import ResolvedAutos, resolve_autos
from zlaunch.config.resolve.values import Values
from zlaunch.config.rules.rule import Context
from zlaunch.dsconfig.text.document import dotted
from zlaunch.hosts.machine.interpreter import installed_stack
from zlaunch.job.args import ScriptArgs
from zlaunch.job.model import ModelConfig
from zlaunch.job.trainer_args import read_arguments
from zlaunch.job.trainer_releases import ADDED, REMOVED

INSTALLED = installed_stack().trainer
SHARE = "warmup_steps" if INSTALLED.takes_warmup_fraction else "warmup_ratio"

ARGUMENTS = {
    "nothing": "",
    "batch": "--per_device_train_batch_size 4",
    "accumulation": "--gradient_accumulation_steps 3 --per_device_train_batch_size 2",
    "lr": "--learning_rate 3e-4",
    "betas": "--adam_beta1 0.95 --adam_beta2 0.98",
    "eps": "--adam_epsilon 1e-6",
    "weight decay": "--weight_decay 0.1",
    "clip": "--max_grad_norm 0.5",
    "no clip": "--max_grad_norm 0",
    "warmup steps": "--warmup_steps 20",
    "warmup one and a half": "--warmup_steps 1.5",
    "warmup share, unknown length": f"--{SHARE} 0.1",
    "steps": "--max_steps 1000",
    "warmup share": f"--{SHARE} 0.07 --max_steps 100",
    "warmup smallest share": f"--{SHARE} 0.0001 --max_steps 7",
    "no warmup": "--warmup_steps 0 --max_steps 7",
    "bf16": "--bf16",
    "fp16": "--fp16",
    "bf16 evaluation": "--bf16_full_eval",
    "fp16 evaluation": "--fp16_full_eval True",
    "everything": "--per_device_train_batch_size 2 --gradient_accumulation_steps 8 --learning_rate 1e-3 "
    "--adam_beta1 0.8 --adam_beta2 0.9 --adam_epsilon 1e-7 --weight_decay 0.01 --max_grad_norm 2 "
    f"--{SHARE} 0.5 --max_steps 11 --bf16",
}
if not INSTALLED.takes_warmup_fraction:
    ARGUMENTS["warmup one and a half"] = "--warmup_steps 1"
    ARGUMENTS["warmup of the whole run"] = "--warmup_ratio 1 --max_steps 9"
if not INSTALLED.lacks("warmup_ratio"):
    ARGUMENTS["both warmups"] = "--warmup_steps 3 --warmup_ratio 0.1 --max_steps 100"
    ARGUMENTS["ratio of nothing"] = "--warmup_steps 3 --warmup_ratio 0"

JOBS = ((2, 64, 1), (2, 1000, 8), (3, 64, 2), (3, 1000, 8))
"""Stage, hidden size, ranks."""

CELLS = each(
    ("given", "stage", "hidden", "ranks"),
    [(given, *job) for given, job in itertools.product(ARGUMENTS, JOBS)],
)


def resolved(config: dict[str, Any], argv: list[str], hidden: int, ranks: int) -> ResolvedAutos:
    args, findings = read_arguments(ScriptArgs.of(argv), release=INSTALLED)
    assert findings == []
    model = ModelConfig({"hidden_size": hidden}, "", "config.json")
    return resolve_autos(Values.of(config, WRITTEN), Context(ranks, args, model))


def leaves(config: dict[str, Any]) -> dict[str, str]:
    """Write each value as JSON does, so that 1, 1.0 and true differ."""
    return {dotted(path): json.dumps(leaf.value) for path, leaf in Values.of(config, WRITTEN).leaves.items()}


def defaults_of_training_arguments() -> dict[str, Any]:
    from transformers import TrainingArguments

    return {field.name: field.default for field in dataclasses.fields(TrainingArguments)}


def test_the_defaults_are_those_of_training_arguments() -> None:
    theirs, ours = defaults_of_training_arguments(), INSTALLED.defaults
    known = {name: theirs.get(name) for name in ours}
    empty = {name: type(value)() for name, value in ours.items() if known[name] is None}
    assert {"warmup_ratio": 0.0, **known, **empty} == {"warmup_ratio": 0.0, **ours}


def test_training_arguments_lack_what_they_are_said_to_lack_and_nothing_else() -> None:
    theirs = defaults_of_training_arguments()
    said = {name: INSTALLED.lacks(name) is not None for name in (*REMOVED, *ADDED)}
    assert said == {name: name not in theirs for name in said}


@each(
    "line",
    [
        *ARGUMENTS.values(),
        "--bf16 false",
        "--bf16=1",
        "--fp16 No",
        "--use_cpu --bf16",
        "--learning-rate 1e-3",
        "--learning_rate=1",
        "--max_steps -1",
        "--optim adagrad",
        "--gradient_accumulation_steps 2 --gradient_accumulation_steps 4",
    ],
)
def test_a_command_line_is_read_as_the_trainer_reads_it(line: str) -> None:
    theirs = vars(parser().parse_args([*line.split(), *NEEDED]))
    args, _ = read_arguments(ScriptArgs.of(line.split()), release=INSTALLED)
    names = [name for name in INSTALLED.defaults if theirs[name] is not None]
    assert {name: args[name].value for name in names} == {name: theirs[name] for name in names}


@CELLS
def test_every_value_is_the_one_the_trainer_fills_in(given: str, stage: int, hidden: int, ranks: int) -> None:
    argv, config = ARGUMENTS[given].split(), all_auto(stage)
    ours = resolved(config, argv, hidden, ranks)
    model_config = type("Config", (), {"hidden_size": hidden})
    theirs = leaves(trainer_fills(config, argv, world_size=ranks, model_config=model_config).config)
    known = {key: value for key, value in leaves(ours.values.config()).items() if key not in ours.left}
    assert known == {key: value for key, value in theirs.items() if key not in ours.left}


@each("given", ARGUMENTS)
def test_only_what_depends_on_the_length_of_the_dataset_is_left_to_the_trainer(given: str) -> None:
    config, argv = all_auto(3), ARGUMENTS[given].split()
    short, long = (leaves(trainer_fills(config, argv, steps=steps).config) for steps in (10_000, 20_000))
    assert {*resolved(config, argv, 256, 1).left} == {key for key in short if short[key] != long[key]}


FSDP = """
import sys, torch
from transformers import HfArgumentParser, Trainer, TrainingArguments
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(sys.argv[1:])
Trainer(model=torch.nn.Linear(1, 1), args=args)
"""


@pytest.mark.job
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--use_cpu", "--deepspeed", "ds.json"], "Using --fsdp xxx together with --deepspeed"),
        ([], "Using fsdp only works in distributed training"),
    ],
)
def test_the_trainer_refuses_fsdp_together_with_a_ds_config_and_without_a_gpu(
    words: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {}}')
    alone = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    done = subprocess.run(
        [sys.executable, "-c", FSDP, "--output_dir", "o", *words, "--fsdp", "full_shard"],
        env={**os.environ, **alone, "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, message in done.stderr) == (1, True), done.stderr
