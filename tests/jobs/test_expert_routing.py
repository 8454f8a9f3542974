import pytest

from tools.expert_routing import train
from zlaunch.job.model import ModelConfig
from zlaunch.job.model_types import model_type

SWITCH = "switch_transformers"


@pytest.mark.job
@pytest.mark.full
def test_experts_that_ranks_need_apart_hang_at_stage_3_without_a_leaf_module_and_train_with_it() -> None:
    leaves = model_type(ModelConfig({"model_type": SWITCH}, "{}", "config.json"), None).separate
    assert [dict(train([SWITCH]))[SWITCH], dict(train([SWITCH], leaves))[SWITCH]] == ["hangs", "trains"]
