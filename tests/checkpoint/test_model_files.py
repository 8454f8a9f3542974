"""Models and adapters whose files are whole, and that lack what `from_pretrained` needs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.made import T, safetensors
from tests.each import each
from zlaunch.checkpoint.find import find
from zlaunch.checkpoint.summary import summarize
from zlaunch.cli.checkpoint.verify import verify

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 10,
    "head_dim": 4,
    "tie_word_embeddings": True,
}
LAYER = "model.layers.0"
MATRICES = {
    **{f"{LAYER}.self_attn.{name}_proj.weight": T((8, 8)) for name in "qkvo"},
    **{f"{LAYER}.mlp.{name}_proj.weight": T((12, 8)) for name in ("gate", "up")},
    f"{LAYER}.mlp.down_proj.weight": T((8, 12)),
}
NORMS = {f"{name}.weight": T((8,)) for name in (f"{LAYER}.input_layernorm", f"{LAYER}.norm", "model.norm")}
MODEL = {"model.embed_tokens.weight": T((10, 8)), **MATRICES, **NORMS}

Q = f"base_model.model.{LAYER}.self_attn.q_proj"
PAIR = {f"{Q}.lora_A.weight": T((2, 8)), f"{Q}.lora_B.weight": T((8, 2))}
LORA = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}


def problems(folder: Path, **files: Mapping[str, Any]) -> str:
    """Write files of tensors and of JSON; say what `verify` finds."""
    for name, content in files.items():
        if any(isinstance(value, T) for value in content.values()):
            safetensors(content, folder / f"{name}.safetensors")
        else:
            (folder / f"{name}.json").write_text(json.dumps(content))
    (found,) = find(folder)
    return " ".join(f"{problem.file.name}: {problem.message}" for problem in summarize(found).problems)


def test_a_whole_model_is_complete(tmp_path: Path) -> None:
    assert problems(tmp_path, config=LLAMA, model=MODEL) == ""


def test_a_model_alone_is_said_to_have_no_optimizer_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems(tmp_path, config=LLAMA, model=MODEL)
    verify(tmp_path)
    assert capsys.readouterr().out.endswith(": complete; it has no optimizer state\n")


@each("prefix", ("module.", "_orig_mod.", "base_model.model."))
def test_names_of_a_wrapper_around_the_model_are_found(prefix: str, tmp_path: Path) -> None:
    found = problems(tmp_path, config=LLAMA, model={prefix + name: one for name, one in MODEL.items()})
    assert f"begin with `{prefix}`" in found


def test_names_of_another_program_are_found(tmp_path: Path) -> None:
    renamed = {name.replace("self_attn.q_proj", "attention.wq"): one for name, one in MODEL.items()}
    assert "no `q_proj`" in problems(tmp_path, config=LLAMA, model=renamed)


def test_a_model_without_the_head_of_its_class_is_found(tmp_path: Path) -> None:
    config = {**LLAMA, "architectures": ["LlamaForSequenceClassification"]}
    assert "no head of `LlamaForSequenceClassification`" in problems(tmp_path, config=config, model=MODEL)


def test_sizes_that_config_json_leaves_out_are_those_of_transformers(tmp_path: Path) -> None:
    found = problems(tmp_path, config={"model_type": "llama"}, model=MODEL)
    assert "config.json says 32; sizes that it leaves out are the defaults" in found


def test_a_saved_model_without_its_config_is_found(tmp_path: Path) -> None:
    assert "config.json: it is missing" in problems(tmp_path, generation_config={}, model=MODEL)


def test_weights_of_any_module_need_no_config(tmp_path: Path) -> None:
    assert problems(tmp_path, model={"net.0.weight": T((4, 4))}) == ""


@each("setting", ({"modules_to_save": ["lm_head"]}, {"use_dora": True}, {"trainable_token_indices": [1]}))
def test_what_an_adapter_trained_beside_its_matrices_is_missed(
    setting: Mapping[str, Any], tmp_path: Path
) -> None:
    assert "it lacks" in problems(tmp_path, adapter_config={**LORA, **setting}, adapter_model=PAIR)


@each("matrix", ("lora_A", "lora_B"))
def test_one_matrix_of_an_adapter_is_not_enough(matrix: str, tmp_path: Path) -> None:
    one = {name: tensor for name, tensor in PAIR.items() if matrix in name}
    assert "it lacks" in problems(tmp_path, adapter_config=LORA, adapter_model=one)


@each(
    "wanted",
    (["classifier", "score"], ["embed_tokens", "lm_head", "not_in_this_model"]),
)
def test_names_that_a_model_need_not_have_are_not_missed(wanted: list[str], tmp_path: Path) -> None:
    saved = {f"base_model.model.{name}.weight": T((10, 8)) for name in ("score", "embed_tokens", "lm_head")}
    config = {**LORA, "modules_to_save": wanted}
    assert problems(tmp_path, adapter_config=config, adapter_model={**PAIR, **saved}) == ""
