"""The width zlaunch reads from `config.json` against the one the Trainer takes from the model."""

import json
from typing import Any

import pytest

from tests.contract.trainer_side import width_the_trainer_takes
from zlaunch.job.model import ModelConfig

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
            made[kind] = CONFIG_MAPPING[kind]()
        except Exception:  # noqa: BLE001 - some configurations have no defaults that are valid
            continue
    return made


def width_or_error(config: Any) -> int | str | None:
    try:
        return ModelConfig(as_json(config), "", "config.json").hidden_size
    except Exception as error:  # noqa: BLE001 - whatever it is, it would end the program
        return repr(error)


def test_most_kinds_of_models_are_looked_at(every_model: dict[str, Any]) -> None:
    from transformers import CONFIG_MAPPING

    assert len(every_model) > 0.9 * len(CONFIG_MAPPING)


def test_no_kind_of_model_has_a_width_other_than_the_trainers(every_model: dict[str, Any]) -> None:
    """A width that config.json does not tell is left to the Trainer; a wrong one would not be noticed."""
    found = {
        kind: (width_or_error(config), width_the_trainer_takes(config))
        for kind, config in every_model.items()
    }
    assert {kind: both for kind, both in found.items() if both[0] != both[1] and None not in both} == {}
