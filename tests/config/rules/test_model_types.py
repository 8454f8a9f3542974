from collections.abc import Mapping

import pytest

from tests.config.rules.test_rules import found
from zlaunch.config.resolve.leaf_modules import with_leaf_modules
from zlaunch.config.resolve.values import Values
from zlaunch.config.rules.model_types import LEAF_CLASSES
from zlaunch.config.rules.rule import Context
from zlaunch.dsconfig.releases import release
from zlaunch.job.model import ModelConfig
from zlaunch.job.source import Source

ZERO_3 = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
V4 = {"transformers": "4.57.6"}
V5 = {"transformers": "5.24.0"}
QWEN3_NEXT = "transformers.models.qwen3_next.modeling_qwen3_next.Qwen3NextSparseMoeBlock"


def model(kind: str) -> ModelConfig:
    return ModelConfig({"model_type": kind}, "{}", "config.json")


def codes(kind: str, packages: dict[str, str | None], deepspeed: str = "0.19") -> list[str]:
    context = Context(model=model(kind), packages=packages, release=release(deepspeed))
    return [finding.code for finding in found(ZERO_3, context) if finding.code == "experts-gathered-apart"]


@pytest.mark.parametrize(
    ("kind", "packages", "deepspeed", "is_found"),
    [
        ("qwen3_next", V4, "0.19", True),
        ("qwen3_next", V5, "0.19", False),
        ("mixtral", V4, "0.19", False),
        ("mixtral", V4, "0.17", True),
        ("mixtral", V5, "0.17", False),
        ("switch_transformers", V5, "0.19", True),
        ("llama", V4, "0.17", False),
    ],
)
def test_separate_experts_need_a_leaf_module_that_is_not_set_by_default(
    kind: str, packages: dict[str, str | None], deepspeed: str, is_found: bool
) -> None:
    assert bool(codes(kind, packages, deepspeed)) is is_found


def leaf_classes(kind: str, config: Mapping[str, object], deepspeed: str = "0.19") -> object:
    context = Context(model=model(kind), packages=V4, release=release(deepspeed))
    values = with_leaf_modules(Values.of(dict(config), Source.option("--ds-config")), context)
    return values[LEAF_CLASSES]


def test_train_sets_the_leaf_module_and_says_why() -> None:
    context = Context(model=model("qwen3_next"), packages=V4)
    values = with_leaf_modules(Values.of(ZERO_3, Source.option("--ds-config")), context)
    leaf = values.leaves[LEAF_CLASSES]
    assert leaf.value == [QWEN3_NEXT]
    assert "qwen3_next" in leaf.source.text


def test_a_leaf_module_of_the_user_stays() -> None:
    config = {"zero_optimization": {"stage": 3, "leaf_module": {"names": ["mlp"]}}}
    assert leaf_classes("qwen3_next", config) is None


@pytest.mark.parametrize(("kind", "stage", "deepspeed"), [("mixtral", 3, "0.19"), ("qwen3_next", 2, "0.19")])
def test_no_leaf_module_is_set_where_none_is_needed(kind: str, stage: int, deepspeed: str) -> None:
    assert leaf_classes(kind, {"zero_optimization": {"stage": stage}}, deepspeed) is None


def test_no_leaf_module_is_set_for_a_release_that_refuses_the_key() -> None:
    assert leaf_classes("qwen3_next", {"zero_optimization": {"stage": 3}}, "0.17") is None
