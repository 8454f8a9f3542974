"""What is recorded of model types, and of leaf modules, against transformers and DeepSpeed."""

import json

import pytest

from tools.record_model_types import FILE, facts_of
from zlaunch.config.rules.model_types import DEFAULT_LEAVES
from zlaunch.job.model_types import NEWEST

RECORDED = json.loads(FILE.read_text())[str(NEWEST)]


def test_the_leaf_modules_are_those_of_deepspeed() -> None:
    from deepspeed.runtime.zero.leaf_module_config import DEFAULT_LEAF_MODULE_CLASSES

    assert list(DEFAULT_LEAVES) == DEFAULT_LEAF_MODULE_CLASSES


@pytest.mark.parametrize("kind", ["albert", "deepseek_v3", "switch_transformers", "t5"])
def test_a_model_type_is_as_recorded(kind: str) -> None:
    """`python -m tools.record_model_types` compares all of them."""
    assert facts_of(kind) == RECORDED[kind]
