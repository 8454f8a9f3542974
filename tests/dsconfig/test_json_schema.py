"""The JSON Schema of a ds_config, by the real validator."""

import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from tests.contract.zlaunch_side import Path, all_paths, nested
from tests.each import each
from tests.running import CONFIGS
from zlaunch.config.rules import RULES
from zlaunch.dsconfig.json_schema import catalog
from zlaunch.dsconfig.releases import NEWEST, RELEASES, REMOVED, Release, release
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema_check import check

VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 4, 0.5, 2.5, "auto", "cpu", "WARN", "bf16", "FP16", "3", "", [], ["a"], {},
)  # fmt: skip


@functools.cache
def validator(name: str = NEWEST.name) -> Any:
    return Draft202012Validator(catalog(Release(name)).schema)


def is_valid(config: Any, name: str = NEWEST.name) -> bool:
    return bool(validator(name).is_valid(config))


def suits_the_models(config: Any) -> bool:
    try:
        DsConfig.model_validate(config)
    except ValidationError:
        return False
    return True


def descriptions(node: Any) -> Iterator[tuple[str, Any]]:
    """Find what every key is described as, but for those in the conditions of a choice."""
    for key, child in node.items() if isinstance(node, dict) else ():
        if key == "properties":
            yield from ((name, value.get("description")) for name, value in child.items())
        if key != "if":
            yield from descriptions(child)
    for child in node if isinstance(node, list) else ():
        yield from descriptions(child)


@pytest.mark.parametrize("name", RELEASES)
def test_the_schema_is_one(name: str) -> None:
    Draft202012Validator.check_schema(catalog(Release(name)).schema)


@pytest.mark.parametrize("name", RELEASES)
def test_every_key_is_described(name: str) -> None:
    assert [key for key, words in descriptions(catalog(Release(name)).schema) if not words] == []


@each("name", RELEASES)
@each("file", sorted(CONFIGS.glob("*.json")), ids=lambda file: file.stem)
def test_a_shipped_config_is_valid_in_every_release(file: Any, name: str) -> None:
    assert is_valid(json.loads(file.read_text()), name)


@each("path", sorted(all_paths()), ids=".".join)
def test_a_key_may_be_what_the_models_say(path: Path) -> None:
    configs = [nested(path, value) for value in VALUES]
    assert [is_valid(config) for config in configs] == [suits_the_models(config) for config in configs]


@each(
    "settings",
    [
        *({"type": name} for name in ("Adam", "ADAMW", "lamb", "Muon", "SGD", "sgd", "MuSGD", "Adamm", 3)),
        {},
        {"params": {"lr": 1e-3}},
        {"type": "Adam", "params": {"lr": "auto", "betas": [0.9, 0.99]}},
        {"type": "Adam", "params": {"lr": "1e-3"}},
        {"type": "Adam", "params": {"momentum": 0.9}},
        {"type": "adam", "params": {"betas": [0.9]}},
        {"type": "SGD", "params": {"momentum": 0.9}},
        {"type": "Lion", "params": {"eps": 1e-8}},
        {"type": "AdamW", "param": {}},
    ],
    ids=str,
)
def test_an_optimizer_is_valid_where_the_models_take_it(settings: Any) -> None:
    config = {"optimizer": settings}
    assert is_valid(config) == suits_the_models(config)


@pytest.mark.parametrize(
    "settings",
    [
        {"type": "WarmupLR", "params": {}},
        {"type": "WarmupLR"},
        {"type": "warmuplr", "params": {}},
        {"type": "WarmupDecayLR", "params": {}},
        {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}},
        {"type": "WarmupDecayLR", "params": {"total_num_steps": 0}},
        {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": [1.0]}},
        {"type": "StepLR", "params": {"step_size": 3}},
        {"type": "WarmupLR", "params": {"total_num_steps": 10}},
    ],
    ids=str,
)
def test_a_scheduler_is_valid_where_the_models_take_it(settings: Any) -> None:
    config = {"scheduler": settings}
    assert is_valid(config) == suits_the_models(config)


@each("each", RULES, ids=lambda each: each.code)
def test_what_a_rule_finds_is_no_mistake_in_a_key(each: Any) -> None:
    """A schema says nothing about what keys mean together."""
    broken = each.broken
    assert is_valid(broken) == (not any(one.severity.value == "error" for one in check(broken).findings))


@pytest.mark.parametrize("name", ["prefetch_bucket_size", "stage3_prefetch_bucket_size"])
def test_both_spellings_of_a_key_of_stage_3_are_valid(name: str) -> None:
    assert is_valid({"zero_optimization": {"stage": 3, name: "auto"}})


@each("key", sorted(REMOVED))
def test_a_removed_key_is_a_mistake_in_the_newest_release(key: str) -> None:
    assert not is_valid(nested(tuple(key.split(".")), {}))


@pytest.mark.parametrize("key", ["elasticity", "zero_optimization.mics_shard_size"])
def test_a_removed_key_is_none_in_a_release_that_reads_it(key: str) -> None:
    assert is_valid(nested(tuple(key.split(".")), {}), "0.16")


@pytest.mark.parametrize(
    "path",
    [
        ("zero_optimization", "zenflow"),
        ("expert_parallel",),
        ("zero_optimization", "leaf_module"),
        ("compile",),
    ],
    ids=".".join,
)
def test_a_key_is_a_mistake_in_a_release_before_it_came(path: Path) -> None:
    assert not is_valid(nested(path, {}), "0.14")


def test_a_default_is_the_one_of_the_release() -> None:
    clipping = [catalog(release(name)).schema["properties"]["gradient_clipping"] for name in ("0.18", "0.19")]
    assert [one["default"] for one in clipping] == [0.0, 1.0]


@pytest.mark.parametrize("key", ["bfloat16", "disable_allgather", "zero_optimization.cpu_offload"])
def test_a_key_that_nobody_should_write_is_struck_out_in_editors(key: str) -> None:
    (node,) = catalog().keys[key]
    assert node["deprecated"]


def test_a_config_may_say_where_its_schema_is() -> None:
    assert is_valid({"$schema": "./ds_config.schema.json"})


@pytest.mark.parametrize("config", [[], "stage 3", {"zero_optimization": True}], ids=str)
def test_what_is_no_ds_config_at_all_is_not_valid(config: Any) -> None:
    assert not is_valid(config)
