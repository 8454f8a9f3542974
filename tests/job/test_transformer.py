from typing import Any

import pytest

from tests.each import each
from tests.estimate.memory.jobs import config
from zlaunch.errors import Refused
from zlaunch.estimate.memory.weights import adapters
from zlaunch.estimate.workload import Lora
from zlaunch.job.transformer import read_transformer

# What `sum(p.numel() for p in model.parameters())` says of the real models.
PARAMETERS = {
    "gpt2": 124_439_808,
    "opt-1.3b": 1_315_758_080,
    "pythia-1.4b": 1_414_647_808,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-8b": 8_190_735_360,
    "gemma-2b": 2_506_172_416,
    "gemma-2-2b": 2_614_341_888,
    "phi-2": 2_779_683_840,
    "phi-3-mini": 3_821_079_552,
    "mixtral-8x7b": 46_702_792_704,
    "bert-base": 109_514_298,
    "t5-base": 222_903_552,
}


@each("model", PARAMETERS)
def test_the_parameters_of_a_known_model_are_counted_exactly(model: str) -> None:
    read = read_transformer(config(model))
    assert (read.parameters, read.known) == (PARAMETERS[model], True)


def test_parameters_are_listed_in_the_models_order() -> None:
    names = [weight.name for weight in read_transformer(config("llama-3-8b")).in_order()]
    assert names[:10] == ["tokens", "q", "k", "v", "o", "gate", "up", "down", "norm", "norm"]
    assert names[-2:] == ["norm", "lm"]


def test_the_largest_parameter_of_a_model_with_many_tokens_is_its_embedding() -> None:
    assert read_transformer(config("llama-3-8b")).largest == 128_256 * 4096


def test_a_tied_output_matrix_is_not_counted_twice() -> None:
    untied = {**config("qwen2.5-0.5b"), "tie_word_embeddings": False}
    assert read_transformer(untied).parameters - PARAMETERS["qwen2.5-0.5b"] == 151_936 * 896


def test_a_model_of_an_unknown_type_is_taken_for_one_like_it() -> None:
    unknown = {**config("llama-3-8b"), "model_type": "lama4ever"}
    read = read_transformer(unknown)
    assert (read.parameters, read.known) == (PARAMETERS["llama-3-8b"], False)


def test_the_text_part_of_a_model_that_reads_images_is_read() -> None:
    nested = {"model_type": "gemma3", "text_config": {**config("gemma-2b"), "model_type": "gemma"}}
    read = read_transformer(nested)
    assert (read.parameters, read.known) == (PARAMETERS["gemma-2b"], False)


@pytest.mark.parametrize("missing", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_config_without_sizes_is_refused_by_name(missing: str) -> None:
    given = {key: value for key, value in config("llama-3-8b").items() if key != missing}
    with pytest.raises(Refused) as caught:
        read_transformer(given)
    assert f"`{missing}`" in caught.value.findings[0].message
    assert caught.value.findings[0].hint


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"model_type": 7},
        {"hidden_size": "auto", "num_hidden_layers": True, "vocab_size": [1]},
        {"text_config": "gemma"},
        {"hidden_size": -1, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 9},
        {**config("gpt2"), "n_layer": 10**9},
    ],
)
def test_what_describes_no_model_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        read_transformer(given)


def test_a_smaller_head_makes_attention_narrower() -> None:
    read = read_transformer({**config("llama-3-8b"), "head_dim": 64})
    assert (read.query, read.key) == (2048, 512)


def test_a_window_that_is_switched_off_is_none() -> None:
    assert read_transformer(config("qwen2.5-7b")).window == 0
    assert read_transformer(config("mistral-7b")).window == 4096


# PEFT's own count for `LoraConfig(r=8, target_modules=["q_proj", "v_proj"])` on Llama-3-8B.
def test_adapters_on_two_matrices_are_counted_as_peft_counts_them() -> None:
    assert adapters(read_transformer(config("llama-3-8b")), Lora(8, ("q_proj", "v_proj"))) == 3_407_872


def test_adapters_on_every_matrix_are_counted_as_peft_counts_them() -> None:
    assert adapters(read_transformer(config("llama-3-8b")), Lora(16)) == 41_943_040


# The shapes that PEFT gives the adapters of one layer of Mixtral 8x7B, `LoraConfig(r=16, target_modules="all-linear")`.
MIXTRAL_LAYER = (
    *((16, 4096), (4096, 16), (16, 4096), (1024, 16), (16, 4096), (1024, 16), (16, 4096), (4096, 16)),
    *((16, 4096), (8, 16), (256, 4096), (28672, 256), (128, 14336), (4096, 128)),
)


def test_adapters_on_experts_are_counted_as_peft_counts_them() -> None:
    mixtral = read_transformer(config("mixtral-8x7b"))
    assert adapters(mixtral, Lora(16)) == 32 * sum(rows * columns for rows, columns in MIXTRAL_LAYER)


def test_a_head_for_something_else_than_language_is_not_known() -> None:
    given = {**config("bert-base"), "architectures": ["BertForTokenClassification"]}
    assert not read_transformer(given).known


def test_an_encoder_that_names_no_class_is_trained_as_a_decoder() -> None:
    masked = config("bert-base")
    unnamed = {key: value for key, value in masked.items() if key != "architectures"}
    upcast = [read_transformer(given).family.upcasts_logits for given in (masked, unnamed)]
    assert upcast == [False, True]
