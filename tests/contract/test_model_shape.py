"""The width zlaunch reads from `config.json` against the one the Trainer takes from the model."""

import json
from typing import Any

import pytest

from tests.contract.trainer_side import width_the_trainer_takes
from zlaunch.job.model import FILE, ModelConfig

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"hidden_size": 96}),
    "gpt2, by n_embd": ("gpt2", {"n_embd": 96}),
    "t5, by d_model": ("t5", {"d_model": 96}),
    "bart, by d_model": ("bart", {"d_model": 96}),
    "bloom": ("bloom", {"hidden_size": 96}),
    "swin": ("swin", {"embed_dim": 24}),
    "segformer, by hidden_sizes": ("segformer", {"hidden_sizes": [8, 16, 96, 32]}),
    "llava, by text_config": ("llava", {"text_config": {"model_type": "llama", "hidden_size": 96}}),
    "gemma3, by text_config": ("gemma3", {"text_config": {"hidden_size": 96}}),
    "qwen2_vl, by text_config": ("qwen2_vl", {"text_config": {"hidden_size": 96}}),
    "gemma3n, whose layers differ in width": ("gemma3n", {"text_config": {"hidden_size": 96}}),
    "distilbert, by dim": ("distilbert", {"dim": 96}),
    "xlm, by emb_dim": ("xlm", {"emb_dim": 96}),
    "florence2, by d_model of text_config": ("florence2", {"text_config": {"d_model": 96}}),
    "perceiver, whose d_model is another width": ("perceiver", {"d_model": 96}),
    "t5gemma, by none": ("t5gemma", {"encoder": {"hidden_size": 96}, "decoder": {"hidden_size": 96}}),
}


def as_json(config: Any) -> dict[str, Any]:
    """Write a model's configuration as `save_pretrained` does."""
    written: dict[str, Any] = json.loads(config.to_json_string())
    return written


@pytest.mark.parametrize("name", MODELS)
def test_the_width_is_the_one_the_trainer_takes(name: str) -> None:
    from transformers import AutoConfig

    kind, sizes = MODELS[name]
    config = AutoConfig.for_model(kind, **sizes)
    assert ModelConfig(as_json(config), "", "config.json").hidden_size == width_the_trainer_takes(config)


@pytest.fixture(scope="module")
def every_model() -> dict[str, Any]:
    """Make the configuration of every kind of model that needs no further arguments."""
    from transformers import CONFIG_MAPPING

    made: dict[str, Any] = {}
    for kind in CONFIG_MAPPING:
        try:
            config = CONFIG_MAPPING[kind]()
        except Exception:  # noqa: BLE001 - some configurations have no defaults that are valid
            continue
        if type(config).__module__.startswith("transformers."):  # not registered by the rehearsal
            made[kind] = config
    return made


def width_or_error(config: Any) -> int | str | None:
    try:
        return ModelConfig(as_json(config), "", "config.json").hidden_size
    except Exception as error:  # noqa: BLE001 - whatever it is, it would end the program
        return repr(error)


def test_most_kinds_of_models_are_looked_at(every_model: dict[str, Any]) -> None:
    from transformers import CONFIG_MAPPING

    assert len(every_model) > 0.9 * len(CONFIG_MAPPING)


def test_each_kind_of_model_has_the_trainers_width(every_model: dict[str, Any]) -> None:
    """A width that transformers computes is left to the Trainer."""
    found = {
        kind: (width_or_error(config), width_the_trainer_takes(config))
        for kind, config in every_model.items()
    }
    computed = {kind for kind, (ours, theirs) in found.items() if ours is None and theirs is not None}
    assert {kind: both for kind, both in found.items() if both[0] != both[1] and kind not in computed} == {}
    assert computed == {
        "gemma4_unified_audio",
        "higgs_audio_v2_tokenizer",
        "nemotron3_5_transcribe_audio",
        "xcodec",
    }


def test_the_models_without_a_width_are_those_that_the_trainer_refuses(every_model: dict[str, Any]) -> None:
    """If this fails under a new release of transformers, correct `none` in zlaunch/job/hidden_sizes.json."""
    without = sorted(kind for kind, config in every_model.items() if width_the_trainer_takes(config) is None)
    recorded = json.loads(FILE.read_text("utf-8"))["none"]
    assert recorded == without


def test_a_size_that_config_json_leaves_out_is_that_of_transformers() -> None:
    """As in the config.json of llava-hf/llava-1.5-7b-hf, whose text model has Llama's usual width."""
    from transformers import AutoConfig

    written = {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}}
    config = AutoConfig.for_model(**written)
    assert ModelConfig(written, "", "config.json").hidden_size == width_the_trainer_takes(config) == 4096
