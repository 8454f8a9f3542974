"""Checkpoints of every kind, as they are judged from their files alone."""

import os
from pathlib import Path

import pytest

from tests.checkpoint.made import torch_save, trainers
from tests.irregular import KINDS, replaced, within
from zlaunch.checkpoint.find import checkpoint_at, find
from zlaunch.checkpoint.summary import summarize
from zlaunch.resume.fit import ResumeTarget, ResumeWay, can_resume

BF16 = {"bf16": {"enabled": True}}
ADAPTER = {f"layers.{layer}.q_proj.lora_{part}.default.weight": (4, 8) for layer in (0, 1) for part in "AB"}


def test_an_adapter_of_a_job_in_bf16_whose_files_have_placeholders_in_fp32_is_of_bf16(tmp_path: Path) -> None:
    checkpoint = summarize(checkpoint_at(trainers(tmp_path / "checkpoint-3", ADAPTER, 3, "float32", BF16)))
    assert (checkpoint.problems, checkpoint.unknown, checkpoint.dtype) == ((), (), "bfloat16")
    ways = {name: can_resume(checkpoint, ResumeTarget(2, 3, name)).way for name in ("bf16", "fp16", "fp32")}
    assert ways["bf16"] is ResumeWay.AS_IT_IS
    assert ways["fp16"] is ways["fp32"] is not ResumeWay.AS_IT_IS


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_stands_in_the_place_of_a_file_no_reader_waits_for_it(kind: str, tmp_path: Path) -> None:
    checkpoint = trainers(tmp_path / "checkpoint-3", ADAPTER, 2, config=BF16)
    for name in ("model.safetensors", "model.safetensors.index.json", "config.json", "adapter_config.json"):
        (checkpoint / name).write_text("{}")
    torch_save({}, checkpoint / "training_args.bin")
    for file in [file for file in checkpoint.rglob("*") if file.is_file()]:
        with replaced(file, kind), within(10):
            for found in find(tmp_path):
                summarize(found, complete=True)


def test_a_pipe_in_the_place_of_weights_is_named(tmp_path: Path) -> None:
    trainers(tmp_path / "checkpoint-3", ADAPTER, 2, config=BF16)
    os.mkfifo(tmp_path / "checkpoint-3" / "model.safetensors")
    (problem,) = summarize(checkpoint_at(tmp_path)).problems
    assert (problem.file.name, problem.message) == ("model.safetensors", "it is a named pipe, not a file")
