from typing import Any

import pytest

from zlaunch.dsconfig.keys.lookup import field_at, known_keys, section_at
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.section import Section
from zlaunch.dsconfig.schema.zero import OffloadParam, Zero
from zlaunch.dsconfig.text.document import KeyPath

METRICS: dict[str, Any] = {"data_sampling": {"curriculum_learning": {"curriculum_metrics": {"seqlen": {}}}}}

WHOLE: dict[str, Any] = {
    "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
    "bf16": {"enabled": True},
    "data_efficiency": METRICS,
    "train_batch_size": 8,
    "datastates_ckpt": {"a": {}},
}


def _optimizer(kind: str) -> dict[str, Any]:
    return {"optimizer": {"type": kind, "params": {}}}


@pytest.mark.parametrize(
    ("path", "section"),
    [((), DsConfig), (("zero_optimization",), Zero), (("zero_optimization", "offload_param"), OffloadParam)],
)
def test_a_section_is_found_along_its_path(path: KeyPath, section: type[Section]) -> None:
    assert section_at(WHOLE, path) is section


@pytest.mark.parametrize(
    "path", [("train_batch_size",), ("zero_optimization", "stage"), ("datastates_ckpt",)]
)
def test_there_is_no_section_where_there_is_no_model(path: KeyPath) -> None:
    assert section_at(WHOLE, path) is None


def test_nothing_is_known_below_an_object_in_which_anything_goes() -> None:
    assert known_keys(WHOLE, ("datastates_ckpt", "a")) == []


@pytest.mark.parametrize(
    ("kind", "key"),
    [("Adam", "adam_w_mode"), ("ADAMW", "adam_w_mode"), ("Muon", "muon_lr"), ("Lamb", "max_coeff")],
)
def test_the_type_of_an_optimizer_decides_its_parameters(kind: str, key: str) -> None:
    assert key in known_keys(_optimizer(kind), ("optimizer", "params"))


def test_the_type_of_a_scheduler_decides_its_parameters() -> None:
    whole = {"scheduler": {"type": "WarmupDecayLR", "params": {}}}
    assert "total_num_steps" in known_keys(whole, ("scheduler", "params"))


def test_the_parameters_of_torchs_own_optimizers_are_free() -> None:
    assert known_keys(_optimizer("SGD"), ("optimizer", "params")) == []


def test_an_object_with_names_of_ones_own_has_known_keys_below_each_name() -> None:
    path = ("data_efficiency", "data_sampling", "curriculum_learning", "curriculum_metrics", "seqlen")
    assert "difficulty_type" in known_keys(WHOLE, path)


def test_the_keys_of_an_absent_section_are_known() -> None:
    assert "stage" in known_keys({}, ("zero_optimization",))


def test_a_field_says_what_its_key_is_for() -> None:
    field = field_at(WHOLE, ("bf16", "enabled"))
    assert field is not None
    assert field.default is False


def test_an_unknown_key_has_no_field() -> None:
    assert field_at(WHOLE, ("bf16", "favourite")) is None
