"""The bundled models are what was published of them."""

import re
from typing import Any

from tests.each import each
from zlaunch.job.model import HUB_ID
from zlaunch.job.public_models import (
    PublicModel,
    find_public,
    nearest_public,
    public_models,
    public_names,
    public_of_size,
)
from zlaunch.job.transformer import read_transformer

NOT_ARCHITECTURE = {"auto_map", "quantization_config", "bos_token_id", "eos_token_id", "_name_or_path"}
SOURCE = r"https://github\.com/[\w.-]+/[\w.-]+/blob/[0-9a-f]{12}/.+|defaults of transformers' \w+Config"


def is_published(count: int, published: int | str) -> bool:
    """Whether a number is the published one, rounded as that is."""
    if isinstance(published, int):
        return count == published
    number, unit = float(published[:-1]), {"M": 10**6, "B": 10**9}[published[-1]]
    decimals = len(published[:-1].partition(".")[2])
    return round(count / unit, decimals) == number


def known_to_the_closed_form() -> list[PublicModel]:
    return [model for model in public_models() if read_transformer(dict(model.config)).known]


@each("model", known_to_the_closed_form, ids=lambda model: model.name)
def test_a_bundled_model_has_as_many_parameters_as_were_published(model: PublicModel) -> None:
    count = read_transformer(dict(model.config)).parameters
    assert is_published(count, model.parameters), f"{count:,}"


def test_the_closed_form_counts_most_bundled_models() -> None:
    counted = [model.name for model in known_to_the_closed_form()]
    assert len(counted) >= len(public_models()) - 7


@each("model", public_models, ids=lambda model: model.name)
def test_a_bundled_model_says_where_it_was_read(model: PublicModel) -> None:
    assert model.sources
    assert all(re.fullmatch(SOURCE, source) for source in model.sources)
    assert model.counted_by


@each("model", public_models, ids=lambda model: model.name)
def test_a_bundled_config_has_only_what_builds_the_model(model: PublicModel) -> None:
    config: dict[str, Any] = dict(model.config)
    assert {"architectures", "model_type", "vocab_size"} <= config.keys()
    assert not NOT_ARCHITECTURE & config.keys()


def test_no_name_stands_for_two_bundled_models() -> None:
    names = [name.lower() for name in public_names()]
    assert len(names) == len({*names})
    assert all(re.fullmatch(HUB_ID, name) for name in public_names())


def test_a_bundled_model_is_found_in_any_case_and_by_all_its_names() -> None:
    found = [
        find_public(name) for name in ("Meta-Llama/LLAMA-3.1-8b", "meta-llama/Meta-Llama-3.1-8B-Instruct")
    ]
    assert [model and model.name for model in found] == ["meta-llama/Llama-3.1-8B"] * 2
    assert find_public("meta-llama/Llama-3.1-8B-it") is None


@each(
    "typed, meant",
    [
        ("llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("meta-llama/LLama3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("Qwen/Qwen-2.5-7B", "Qwen/Qwen2.5-7B"),
        ("org/open", None),
        ("model", None),
    ],
)
def test_a_name_that_is_close_to_a_bundled_one_is_recognized(typed: str, meant: str | None) -> None:
    assert nearest_public(typed) == meant


@each(
    "size, name",
    [("7B", "mistralai/Mistral-7B-Instruct-v0.2"), ("70b", "meta-llama/Llama-3.1-70B"), ("model", None)],
)
def test_a_size_is_answered_with_bundled_models_of_that_size(size: str, name: str | None) -> None:
    assert next(iter(public_of_size(size)), None) == name
