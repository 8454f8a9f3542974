"""What differs between two ds_configs."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.zlaunch_side import Path, all_paths, default_of, nested
from tests.each import each
from zlaunch.config.diff import Difference, compare
from zlaunch.dsconfig.keys.lookup import field_at
from zlaunch.dsconfig.releases import release
from zlaunch.dsconfig.text.parser import parse

ZERO_3 = {"zero_optimization": {"stage": 3}}


def compared(left: Any, right: Any, name: str = "0.19") -> tuple[Difference, ...]:
    texts = [side if isinstance(side, str) else json.dumps(side) for side in (left, right)]
    first, second = (parse(text, f"{letter}.json").value for text, letter in zip(texts, "ab", strict=True))
    return compare(first, second, release(name))


def differing(left: Any, right: Any, name: str = "0.19") -> list[tuple[str, str, str]]:
    found = compared(left, right, name)
    return [(one.key, str(one.cells[0]), str(one.cells[1])) for one in found]


def zero(**keys: Any) -> dict[str, Any]:
    return {"zero_optimization": keys}


def offload(**keys: Any) -> dict[str, Any]:
    return zero(stage=2, offload_optimizer=keys)


def test_a_value_that_differs_is_shown() -> None:
    assert differing(zero(stage=2), zero(stage=3))[0] == ("zero_optimization.stage", "2", "3")


def test_a_default_is_marked() -> None:
    assert differing({}, {"gradient_clipping": 0.5}) == [("gradient_clipping", "1 (default)", "0.5")]


def test_auto_is_not_the_default() -> None:
    assert differing({}, {"gradient_clipping": "auto"})[0][2] == '"auto"'


def test_a_key_that_deepspeed_does_not_know_is_absent_elsewhere() -> None:
    assert differing({}, {"gradient_clip": 1}) == [("gradient_clip", "(absent)", "1")]


SAME: dict[str, tuple[Any, Any]] = {
    "a default that is written out": ({}, {"gradient_clipping": 1.0}),
    "a default that depends on the stage": (ZERO_3, zero(stage=3, overlap_comm=True)),
    "an empty section": ({}, {"aio": {}}),
    "an offload to nowhere": (zero(stage=2), offload(device="none", pin_memory=False)),
    "settings of what is switched off": ({}, {"fp16": {"enabled": False, "loss_scale": 128}}),
    "settings of DeepCompile without it": ({}, {"compile": {"deepcompile": False, "double_buffer": False}}),
    "a key of another stage": (zero(stage=2), zero(stage=2, stage3_max_live_parameters=5)),
    "a spelling without stage3": (
        zero(stage=3, prefetch_bucket_size=5),
        zero(stage=3, stage3_prefetch_bucket_size=5),
    ),
    "an old switch": (zero(stage=2, cpu_offload=True), offload(device="cpu")),
    "an old switch that is off": (zero(stage=2, cpu_offload=False), zero(stage=2)),
    "an old name of a section": ({"bfloat16": {"enabled": True}}, {"bf16": {"enabled": True}}),
    "an old name of a key": (
        zero(stage=3, stage3_gather_fp16_weights_on_model_save=True),
        zero(stage=3, stage3_gather_16bit_weights_on_model_save=True),
    ),
    "an exponent": ('{"train_batch_size": 2e2}', '{"train_batch_size": 200}'),
    "a number in quotes": (zero(stage=1, reduce_bucket_size="2e8"), zero(stage=1, reduce_bucket_size=200000000)),
    "a decimal point": ('{"gradient_clipping": 0.50}', '{"gradient_clipping": 5e-1}'),
    "the case of a word": ({"checkpoint": {"tag_validation": "Fail"}}, {"checkpoint": {"tag_validation": "fail"}}),
    "the case of an optimizer": ({"optimizer": {"type": "adamw"}}, {"optimizer": {"type": "AdamW"}}),
    "the order of keys": ({"train_batch_size": 8, **ZERO_3}, {**ZERO_3, "train_batch_size": 8}),
    "where editors find the schema": ({"$schema": "https://example.com/ds.json"}, {}),
    "a comment": ('{"train_batch_size": 8}', '{"train_batch_size": 8} // eight'),
}  # fmt: skip


@each("what", SAME)
def test_what_deepspeed_reads_alike_is_no_difference(what: str) -> None:
    assert differing(*SAME[what]) == []


OTHER: dict[str, tuple[Any, Any]] = {
    "a section that works by being there": (offload(device="cpu"), zero(stage=2, offload_optimizer={"device": "cpu"}, zenflow={})),
    "an optimizer": ({}, {"optimizer": {"type": "Adam"}}),
    "the case of torch's optimizers": ({"optimizer": {"type": "SGD"}}, {"optimizer": {"type": "sgd"}}),
    "a name that looks like a number": ({"wandb": {"enabled": True, "project": "1"}}, {"wandb": {"enabled": True, "project": "1.0"}}),
    "true and 1": ({"fp16": {"enabled": True, "auto_cast": True}}, {"fp16": {"enabled": True, "auto_cast": 1}}),
    "a default of another stage": (zero(stage=2), zero(stage=2, overlap_comm=True)),
}  # fmt: skip


@pytest.mark.parametrize("what", OTHER)
def test_what_deepspeed_reads_otherwise_is_a_difference(what: str) -> None:
    assert differing(*OTHER[what])


def test_a_default_is_that_of_the_release() -> None:
    assert differing({}, {"gradient_clipping": 0.0}, "0.18") == []


@each(
    ("section", "written", "default"),
    [
        ("comms_logger", {"enabled": True}, {"prof_ops": []}),
        ("optimizer", {"type": "Adam"}, {"legacy_fusion": False}),
        ("pipeline", {}, {"use_reentrant": True}),
        ("zero_optimization", {"stage": 3}, {"leaf_module": {"names": []}}),
    ],
)
def test_a_default_that_no_release_records_is_that_of_the_schema(
    section: str, written: dict[str, Any], default: dict[str, Any]
) -> None:
    assert differing({section: written}, {section: {**written, **default}}, "0.18") == []


def test_a_difference_has_the_effect_of_its_key() -> None:
    stage, *_ = compared(zero(stage=2), zero(stage=3))
    assert stage.effect is not None
    assert "bytes per parameter" in stage.effect.memory


def test_a_key_that_is_not_read_says_so() -> None:
    found = differing(zero(stage=2, sub_group_size=5), zero(stage=3, sub_group_size=5))
    assert ("zero_optimization.sub_group_size", "(not read)", "5") in found


DEFAULTS = [
    path
    for path in all_paths()
    if (field := field_at(nested(path, {}), path)) is not None
    and isinstance(default_of(field), bool | int | float | str)
    and path[0] not in ("weight_quantization", "bfloat16")
    and path[:2] not in (("zero_optimization", "zenflow"), ("checkpoint", "writer"))
]


@each("path", DEFAULTS, ids=".".join)
def test_a_default_written_out_is_no_difference(path: Path) -> None:
    field = field_at(nested(path, {}), path)
    assert field is not None
    assert differing({}, nested(path, default_of(field))) == []


configs = st.sampled_from([config for pair in [*SAME.values(), *OTHER.values()] for config in pair])


@given(configs)
def test_a_config_is_the_same_as_itself(config: Any) -> None:
    assert compared(config, config) == ()


@given(configs, configs)
def test_a_difference_is_one_from_both_sides(left: Any, right: Any) -> None:
    assert {one.key for one in compared(left, right)} == {one.key for one in compared(right, left)}
