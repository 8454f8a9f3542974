"""The small model has the architecture of the large one."""

from typing import Any

import pytest

from zlaunch.parity.small_model import HEAD, VOCABULARY, deepest, narrow, with_depth

LARGE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
    "attention_dropout": 0.1,
    "eos_token_id": [128001, 128008],
    "bos_token_id": 128000,
    "pad_token_id": 128001,
    "layer_types": ["full_attention"] * 32,
}


def test_key_heads_stay_fewer_than_heads() -> None:
    small = narrow(LARGE)
    assert (small["num_attention_heads"], small["num_key_value_heads"]) == (4, 2)
    assert small["hidden_size"] == 4 * HEAD


def test_what_is_no_size_stays() -> None:
    small = narrow(LARGE)
    assert {key: small[key] for key in ("model_type", "tie_word_embeddings", "layer_types")} == {
        key: LARGE[key] for key in ("model_type", "tie_word_embeddings", "layer_types")
    }


def test_nothing_is_dropped_at_random() -> None:
    assert narrow(LARGE)["attention_dropout"] == 0.0


def test_special_tokens_stay_in_the_vocabulary_and_differ() -> None:
    small = narrow(LARGE)
    tokens = [*small["eos_token_id"], small["bos_token_id"]]
    assert len({*tokens}) == 3
    assert max(tokens) < VOCABULARY
    assert small["pad_token_id"] == small["eos_token_id"][0]


def test_a_small_model_is_not_made_larger() -> None:
    assert narrow({"intermediate_size": 24, "num_local_experts": 2}) == {
        "intermediate_size": 24,
        "num_local_experts": 2,
    }


def test_a_list_with_an_item_for_each_layer_is_cut_with_the_layers() -> None:
    cut = with_depth({**LARGE, "text_config": LARGE}, 3)
    assert (cut["num_hidden_layers"], len(cut["layer_types"]), deepest(cut)) == (3, 3, 3)


@pytest.mark.parametrize(("part", "pairs"), [(1.0, 8), (0.75, 6)])
def test_factors_of_a_rotary_embedding_fit_the_narrow_heads(part: float, pairs: int) -> None:
    scaling = {"type": "longrope", "long_factor": [1.0] * 48, "short_factor": [1.0] * 48}
    small = narrow({"rope_scaling": scaling, "partial_rotary_factor": part})
    assert len(small["rope_scaling"]["long_factor"]) == pairs
