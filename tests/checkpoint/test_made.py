"""Checkpoints of every kind, as they are judged from their files alone."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.checkpoint.made import T, engine, safetensors, torch_save, trainers
from tests.irregular import KINDS, replaced, within
from zlaunch.checkpoint.export import plan_export, write_export
from zlaunch.checkpoint.find import SavedBy, checkpoint_at, find
from zlaunch.checkpoint.summary import summarize
from zlaunch.checkpoint.verify import require_engine
from zlaunch.errors import Refused
from zlaunch.resume.fit import ResumeTarget, ResumeWay, can_resume

BF16 = {"bf16": {"enabled": True}}
Q_PROJ = [f"base_model.model.layers.{layer}.q_proj" for layer in (0, 1)]
ADAPTER = {f"{module}.lora_{part}.default.weight": (4, 8) for module in Q_PROJ for part in "AB"}


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


def test_a_latest_that_no_path_can_have_is_no_name(tmp_path: Path) -> None:
    folder = trainers(tmp_path / "checkpoint-3", ADAPTER, 2, config=BF16)
    for text in ("x" * 5000, "\0"):
        (folder / "latest").write_text(text)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": text}}))
        files = {problem.file for problem in summarize(checkpoint_at(folder)).problems}
        assert folder / "latest" in files, text


def test_a_pipe_in_the_place_of_weights_is_named(tmp_path: Path) -> None:
    trainers(tmp_path / "checkpoint-3", ADAPTER, 2, config=BF16)
    os.mkfifo(tmp_path / "checkpoint-3" / "model.safetensors")
    (problem,) = summarize(checkpoint_at(tmp_path)).problems
    assert (problem.file.name, problem.message) == ("model.safetensors", "it is a named pipe, not a file")


LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 32,
}


def llama(layers: int = 2, hidden: int = 8) -> dict[str, T]:
    shapes = {"embed_tokens": (32, hidden), "norm": (hidden,)}
    for layer in range(layers):
        inside = f"layers.{layer}"
        shapes |= {f"{inside}.self_attn.{part}_proj": (hidden, hidden) for part in "qkvo"}
        shapes |= {f"{inside}.mlp.{part}_proj": (16, hidden) for part in ("gate", "up")}
        shapes |= {f"{inside}.mlp.down_proj": (hidden, 16)}
        shapes |= {f"{inside}.{norm}_layernorm": (hidden,) for norm in ("input", "post_attention")}
    tensors = {f"model.{name}.weight": T(shape) for name, shape in shapes.items()}
    return {**tensors, "lm_head.weight": T((32, hidden))}


def model(folder: Path, tensors: Mapping[str, T], config: Mapping[str, object] = LLAMA) -> list[str]:
    """Write a model, and say what is wrong with it."""
    safetensors(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (found,) = find(folder)
    assert found.saved_by is SavedBy.WEIGHTS
    return [problem.message for problem in summarize(found).problems]


def test_a_model_that_has_all_of_its_config_is_complete(tmp_path: Path) -> None:
    assert model(tmp_path, llama()) == []
    assert model(tmp_path, llama(layers=3)) == []  # `from_pretrained` leaves the third out
    assert model(tmp_path, {"weight": T((2, 2))}, {}) == []


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        ({name: T((0,)) for name in llama()}, LLAMA, "its tensors are empty: saved at stage 3 without gathering"),
        ({**llama(), "lm_head.weight": T((0,))}, LLAMA, "1 of 21 tensors are empty: saved at stage 3 without gathering"),
        ({}, LLAMA, "it has no tensors"),
        (llama(layers=1), LLAMA, "it has 1 layer, and config.json says 2"),
        (llama(), {**LLAMA, "intermediate_size": 24}, "it lacks 6 tensors of 21 that config.json describes, or they have other sizes"),
        (
            llama(),
            {**LLAMA, "hidden_size": 16},
            "`model.embed_tokens.weight` has shape [32, 8], and config.json says `vocab_size` 32 and `hidden_size` 16",
        ),
    ],
)  # fmt: skip
def test_a_model_that_lacks_something_is_not(
    tensors: Mapping[str, T], config: Mapping[str, object], message: str, tmp_path: Path
) -> None:
    assert model(tmp_path, tensors, config) == [message]


def engine_of(folder: Path, names: Mapping[str, T]) -> Path:
    """Write a checkpoint of an engine, and the directory of the model `LLAMA` beside it; return that."""
    trainers(folder / "checkpoint-3", {name: one.shape for name, one in names.items()}, 2, config=BF16)
    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text(json.dumps(LLAMA))
    return folder / "llama"


def test_a_checkpoint_is_exported_with_the_config_of_its_own_model(tmp_path: Path) -> None:
    named = engine_of(tmp_path, llama())
    assert plan_export(checkpoint_at(tmp_path), None, model=named).class_name == "LlamaForCausalLM"


def test_a_checkpoint_is_not_exported_with_the_config_of_another_model(tmp_path: Path) -> None:
    named = engine_of(tmp_path, {"0.weight": T((8, 8)), "0.bias": T((8,))})
    with pytest.raises(Refused) as caught:
        plan_export(checkpoint_at(tmp_path), None, model=named)
    assert "the checkpoint is not of this model: it lacks" in caught.value.findings[0].message
    assert plan_export(checkpoint_at(tmp_path), None).class_name is None


def test_no_class_is_named_for_weights_with_something_around_them(tmp_path: Path) -> None:
    named = engine_of(tmp_path, {f"module.{name}": one for name, one in llama().items()})
    planned = plan_export(checkpoint_at(tmp_path), None, model=named)
    assert planned.class_name is None
    assert "all its names begin with `module.`" in str(planned.unlike_model)


def test_an_empty_adapter_beside_a_good_engine_is_a_problem_that_keeps_nobody_from_resuming(
    tmp_path: Path,
) -> None:
    folder = trainers(tmp_path / "checkpoint-3", ADAPTER, 3, "float32", BF16)
    safetensors({"a": T((0,))}, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    saved = summarize(checkpoint_at(folder))
    (problem,) = saved.problems
    assert (
        "its tensors are empty: saved at stage 3 without gathering; `zlaunch checkpoint exp"
        in problem.message
    )
    assert can_resume(saved, ResumeTarget(2, 3, "bf16")).way is ResumeWay.AS_IT_IS


def test_a_model_in_the_directory_of_an_engine_keeps_nobody_from_exporting_a_good_one(tmp_path: Path) -> None:
    engine(tmp_path, SHAPES, 3, config=BF16)
    safetensors({name: T((0,)) for name in SHAPES}, tmp_path / "model.safetensors")
    checkpoint = checkpoint_at(tmp_path)
    assert len(summarize(checkpoint).problems) == 1
    require_engine(checkpoint)
    assert len(plan_export(checkpoint, "float32").weights) == len(SHAPES)


def test_an_adapter_that_lacks_what_an_engine_beside_it_has_trained_is_a_problem(tmp_path: Path) -> None:
    folder = trainers(tmp_path / "checkpoint-3", ADAPTER, 2, "bfloat16", BF16)
    tensors = {name.replace(".default", ""): T(shape) for name, shape in ADAPTER.items()}
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    safetensors(tensors, folder / "adapter_model.safetensors")
    assert summarize(checkpoint_at(folder)).problems == ()
    gone = f"{Q_PROJ[1]}.lora_B.weight"
    del tensors[gone]
    safetensors(tensors, folder / "adapter_model.safetensors")
    second, first = summarize(checkpoint_at(folder)).problems
    assert first.message.startswith(f"it lacks `{gone}`, which trained; `zlaunch check")
    assert second.message == f"it lacks `{gone}`, and has other parts of the same adapters"


def test_weights_alone_are_a_model_whatever_their_name(tmp_path: Path) -> None:
    safetensors({"a": T((2,))}, tmp_path / "adapter" / "adapter_model.safetensors")
    safetensors({"a": T((2,))}, tmp_path / "lora" / "pytorch_lora_weights.safetensors")
    safetensors({"a": T((2,))}, tmp_path / "unet" / "diffusion_pytorch_model.safetensors")
    safetensors({"a": T((2,))}, tmp_path / "embeddings.safetensors")
    assert [found.folder.name for found in find(tmp_path)] == ["adapter", "lora", "unet"]


def test_an_adapter_in_a_directory_of_a_checkpoint_does_not_hide_it(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text('{"global_step": 3}')
    safetensors({"a": T((2,))}, tmp_path / "adapter_model.safetensors")
    safetensors({"a": T((2,))}, tmp_path / "reward" / "adapter_model.safetensors")
    assert [found.saved_by for found in find(tmp_path)] == [SavedBy.TRAINER]


def test_shards_that_nothing_lists_are_not_found_by_from_pretrained(tmp_path: Path) -> None:
    safetensors({"a": T((2,))}, tmp_path / "model-00002-of-00003.safetensors")
    (found,) = find(tmp_path)
    assert [(problem.file.name, problem.message) for problem in summarize(found).problems] == [
        ("model-00001-of-00003.safetensors", "it is missing: 1 of 3 shards are there"),
        ("model.safetensors.index.json", "it is missing, and the 3 shards are found by it"),
    ]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "pytorch_model.bin"])
def test_a_pointer_of_git_lfs_is_no_damage_but_a_file_to_download(name: str, tmp_path: Path) -> None:
    safetensors(llama(), tmp_path / "model.safetensors")
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    (found,) = find(tmp_path)
    (problem,) = summarize(found).problems
    assert problem.file.name == name
    assert problem.message == "it is a Git LFS pointer, not the file itself; `git lfs pull` downloads it"


SHAPES = {"first.weight": (4, 3), "last.weight": (5,)}


def told_in_full(folder: Path) -> list[str]:
    problems = summarize(checkpoint_at(folder), complete=True).problems
    return [f"{problem.file.name}: {problem.message}" for problem in problems]


@pytest.mark.parametrize("stage", [2, 3])
def test_a_bit_of_a_model_that_has_no_checksum_is_compared_with_the_engine(
    stage: int, tmp_path: Path
) -> None:
    folder = trainers(tmp_path / "checkpoint-3", SHAPES, stage, config=BF16)
    file = folder / "model.safetensors"
    safetensors({name: T(shape, "bfloat16") for name, shape in SHAPES.items()}, file)
    assert told_in_full(folder) == []
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    message = "1 number of `last.weight` differs from what the engine saved: the file is damaged"
    assert told_in_full(folder) == [f"model.safetensors: {message}"]


def test_a_model_that_is_another_altogether_is_not_called_damaged(tmp_path: Path) -> None:
    folder = trainers(tmp_path / "checkpoint-3", SHAPES, 2, config=BF16)
    average = {name: T(shape, "bfloat16", b"\1" * math.prod(shape) * 2) for name, shape in SHAPES.items()}
    safetensors(average, folder / "model.safetensors")
    assert told_in_full(folder) == []


def test_a_tokenizer_of_tiktoken_is_no_damaged_one(tmp_path: Path) -> None:
    folder = trainers(tmp_path / "checkpoint-3", SHAPES, 2, config=BF16)
    (folder / "tokenizer.model").write_text("IQ== 0\nIg== 1\n")
    assert told_in_full(folder) == []


PIECES = b"\n\5abcde" * 3
"""Field 1 of a protobuf message, of five bytes, three times."""


@pytest.mark.parametrize(
    ("name", "whole", "message"),
    [
        ("config.json", b'{"a": 1}', "it is not JSON: it was cut off or damaged"),
        ("tokenizer.json", b'{"a": 1}', "it is not JSON: it was cut off or damaged"),
        ("special_tokens_map.json", b'{"a": 1}', "it is not JSON: it was cut off or damaged"),
        ("tokenizer.model", PIECES + b"\x12\2ab", "it is cut off"),
        ("merges.txt", b"a b\n", "it is cut off"),
    ],
)
def test_a_file_that_from_pretrained_reads_is_found_if_it_was_cut_off(
    name: str, whole: bytes, message: str, tmp_path: Path
) -> None:
    folder = trainers(tmp_path / "checkpoint-3", SHAPES, 2, config=BF16)
    (folder / name).write_bytes(whole)
    assert told_in_full(folder) == []
    for length in range(len(whole)):
        (folder / name).write_bytes(whole[:length])
        assert told_in_full(folder) == [f"{name}: {message}"]
    assert summarize(checkpoint_at(folder), complete=True).obstructions == ()


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_the_config_of_a_model_names_the_type_that_it_is_written_in(key: str, tmp_path: Path) -> None:
    folder = trainers(tmp_path / "checkpoint-3", {"weight": (4, 8)}, 2)
    (folder / "config.json").write_text(json.dumps({key: "bfloat16", "vocab_size": 4}))
    write_export(plan_export(checkpoint_at(folder), "float32"), tmp_path / "out", lambda _: None)
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {key: "float32", "vocab_size": 4}
