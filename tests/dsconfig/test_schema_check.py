from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.each import each
from tests.making import json_objects, json_values
from zlaunch.config.resolve.compose import preset
from zlaunch.dsconfig.releases import REMOVED, release
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema_check import check
from zlaunch.errors import Finding, Severity
from zlaunch.job.spec import STAGES, Offload, Stage

MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    ({"foo": 1}, "unknown-key", "foo"),
    ({"foo": 1, "zero_optimization": {}}, "unknown-key", "foo"),
    ({"zero_optimization": {"stag": 3}}, "unknown-key", "zero_optimization.stag"),
    ({"zero_optimization": {"offload_param": {"devise": "cpu"}}}, "unknown-key",
     "zero_optimization.offload_param.devise"),
    ({"optimizer": {"type": "Adam", "params": {"momentum": 1.0}}}, "unknown-key", "optimizer.params.momentum"),
    ({"optimizer": {"params": {}}}, "missing-key", "optimizer.type"),
    ({"scheduler": {"type": "WarmupLR"}}, "missing-key", "scheduler.params"),
    ({"zero_optimization": {"sub_group_size": "auto"}}, "auto-not-here", "zero_optimization.sub_group_size"),
    ({"zero_optimization": {"overlap_comm": "auto"}}, "auto-not-here", "zero_optimization.overlap_comm"),
    ({"zero_optimization": {"stage": 4}}, "bad-value", "zero_optimization.stage"),
    ({"zero_optimization": {"stage": True}}, "bad-type", "zero_optimization.stage"),
    ({"zero_optimization": {"sub_group_size": -1}}, "bad-value", "zero_optimization.sub_group_size"),
    ({"train_batch_size": 0}, "bad-value", "train_batch_size"),
    ({"train_batch_size": "32"}, "bad-type", "train_batch_size"),
    ({"train_batch_size": 1.5}, "bad-type", "train_batch_size"),
    ({"bf16": None, "fp16": None}, "bad-type", "fp16"),
    ({"bf16": {"enabled": "true"}}, "bad-type", "bf16.enabled"),
    ({"bf16": {"enabled": 1}}, "bad-type", "bf16.enabled"),
    ({"zero_optimization": 3}, "bad-type", "zero_optimization"),
    ({"optimizer": None}, "bad-type", "optimizer"),
    ({"optimizer": 3}, "bad-type", "optimizer"),
    ({"optimizer": {"type": "Adam", "params": {"lr": "fast"}}}, "bad-type", "optimizer.params.lr"),
]  # fmt: skip

HINTS: list[tuple[dict[str, Any], str | None]] = [
    ({"zero_optimisation": {}}, "did you mean `zero_optimization`?"),
    ({"zero_optimization": {"stag": 3}}, "did you mean `stage`?"),
    ({"zero_optimization.stage": 3}, "nest the keys: a ds_config has no dotted keys"),
    ({"zero_optimization": {"bf16": {}}}, "move `bf16` to the top level"),
    ({"offload_param": {}, "zero_optimization": {}}, "move `offload_param` into `zero_optimization`"),
    ({"offload_param": {}}, "move `offload_param` into `zero_optimization`"),
    ({"bf16": {"favourite": 1}}, "`zlaunch config explain bf16` lists the keys"),
    ({"optimizer": {"params": {}}}, 'add `"type": …`'),
    ({"optimizer": {"type": "adam_w"}}, 'did you mean `"AdamW"`?'),
    ({"zero_optimization": {"offload_param": {"device": "CPU"}}}, 'did you mean `"cpu"`?'),
    ({"bf16": {"enabled": "False"}}, "write false, without quotes"),
    ({"train_batch_size": "32"}, "write 32, without quotes"),
    ({"gradient_clipping": "0.5"}, "write 0.5, without quotes"),
    ({"fp16": None}, "delete the key"),
    ({"optimizer": None}, "delete the key"),
    ({"train_batch_size": "many"}, "write a whole number"),
    ({"gradient_clipping": "inf"}, "write a number"),
    ({"zero_optimization": 7}, "write an object, `{…}`"),
    ({"zero_optimization": 3}, 'write an object, `{"stage": 3}`'),
    ({"bf16": True}, 'write an object, `{"enabled": true}`'),
    ({"optimizer": "Lion"}, 'write an object, `{"type": "Lion"}`'),
    ({"zero_optimization": {"offload_param": "CPU"}}, 'write an object, `{"device": "cpu"}`'),
    ({"zero_optimization": {"offload_optimizer": True}}, 'write an object, such as `{"device": "cpu"}`'),
    ({"bf16": {"enabled": "yes"}}, "write true or false"),
    ({"lr": 1e-4}, "the key in a ds_config is `optimizer.params.lr`"),
]

OFFLOADS = [
    Offload(),
    Offload(optimizer="cpu"),
    Offload(optimizer="nvme"),
    Offload(optimizer="cpu", param="none"),
]


def _only(value: dict[str, Any]) -> Finding:
    (finding,) = check(value).findings
    return finding


@each("stage", STAGES.values())
@each("offload", OFFLOADS)
def test_a_preset_has_no_mistake(stage: Stage, offload: Offload) -> None:
    assert check(preset(stage, offload, Path("/nvme"))).findings == ()


@each(("value", "code", "where"), MISTAKES)
def test_a_mistake_is_found_once_and_at_its_key(value: dict[str, Any], code: str, where: str) -> None:
    assert [(finding.code, finding.where) for finding in check(value).findings] == [(code, where)]


@each(("value", "hint"), HINTS)
def test_a_mistake_comes_with_what_to_type(value: dict[str, Any], hint: str | None) -> None:
    assert _only(value).hint == hint


@each("key", REMOVED)
def test_a_removed_key_is_told_from_one_that_never_was(key: str) -> None:
    section, dot, name = key.rpartition(".")
    finding = _only({section: {name: None}} if dot else {name: None})
    assert (finding.code, finding.hint) == ("removed-key", REMOVED[key])


def test_a_value_out_of_range_is_shown() -> None:
    assert _only({"zero_optimization": {"stage": 7}}).message == "`stage` is 7; it can be 0, 1, 2 or 3"


def test_a_choice_of_one_word_reads_well() -> None:
    finding = _only({"zero_optimization": {"zenflow": {"select_interval": "often"}}})
    assert "  " not in finding.message


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "true"),
        (None, "null"),
        ([], "a list"),
        ({}, "an object"),
        ("x", 'the string "x"'),
        (1.5, "1.5"),
    ],
)
def test_a_value_of_the_wrong_type_is_shown_as_json(value: object, shown: str) -> None:
    assert f"is {shown}" in _only({"fp16": {"initial_scale_power": value}}).message


def test_findings_of_a_plain_value_have_no_place() -> None:
    assert _only({"foo": 1, "zero_optimization": {}}).place is None


def test_a_key_may_be_written_without_its_prefix() -> None:
    config = check({"zero_optimization": {"prefetch_bucket_size": 7}}).config
    assert config is not None
    assert config.zero_optimization.stage3_prefetch_bucket_size == 7


def test_a_word_may_be_written_in_capitals_where_deepspeed_does_not_care() -> None:
    assert check({"communication_data_type": "FP16"}).findings == ()


_keys = st.sampled_from([*DsConfig.model_fields, "foo", "zero.stage"])


@given(st.dictionaries(_keys, json_values, max_size=4) | json_objects)
@example({"foo": 1})
def test_any_value_is_checked(value: dict[str, Any]) -> None:
    checked = check(value)
    assert checked.config is not None or checked.findings


def test_the_schema_that_editors_want_is_no_mistake() -> None:
    assert check({"$schema": "ds_config.schema.json"}).findings == ()


def test_a_name_that_is_unknown_does_not_hide_the_rest() -> None:
    checked = check({"optimizer": {"type": "Adaam", "params": {}}, "zero_optimization": {"stage": 2}})
    assert checked.config is not None
    assert checked.config.zero_optimization.stage == 2


def test_a_misspelled_key_is_not_there_for_deepspeed() -> None:
    checked = check({"zero_optimisation": {"stage": 3}})
    assert checked.config is not None
    assert checked.as_read is not None
    assert (checked.config.zero_optimization.stage, checked.as_read.zero_optimization.stage) == (3, 0)


def test_a_key_with_dots_in_its_name_is_told_from_a_nested_one() -> None:
    findings = check({"bf16": {"enabled": "true"}, "bf16.enabled": False}).findings
    assert {finding.path for finding in findings} == {("bf16", "enabled"), ("bf16.enabled",)}


@given(json_objects)
def test_a_value_under_wrong_names_is_checked(value: dict[str, Any]) -> None:
    assert check({"zero_optimisation": "", "offload_param": value}).findings


def test_a_key_of_one_release_alone_is_not_called_new_in_a_later_one() -> None:
    value: dict[str, Any] = {"zero_optimization": {"zeropp_loco_param": {}}}
    assert [one.code for one in check(value, release("0.19")).findings] == ["removed-key"]


@pytest.mark.parametrize(("name", "is_known"), [("0.14", True), ("0.18", True), ("0.19", False)])
def test_an_optimizer_that_was_removed_is_refused_only_where_it_is_gone(name: str, is_known: bool) -> None:
    findings = check(
        {"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 9}}}, release(name)
    ).findings
    assert [one.hint for one in findings] == (
        [] if is_known else ["write `AdamW`, or install DeepSpeed 0.18"]
    )


@pytest.mark.parametrize(
    ("section", "hint"),
    [({"enabled": False}, "delete it"), ({"enabled": True}, "delete it, or install DeepSpeed 0.18")],
)
def test_a_removed_section_is_only_superfluous_if_it_is_off(section: dict[str, Any], hint: str) -> None:
    assert _only({"progressive_layer_drop": section}).hint == hint


@pytest.mark.parametrize(
    ("value", "severity"),
    [({"_comment": "for the big model"}, Severity.ADVICE), ({"bf16": {"_comment": "x"}}, Severity.ERROR)],
)
def test_a_comment_is_only_wrong_where_deepspeed_refuses_it(
    value: dict[str, Any], severity: Severity
) -> None:
    (finding,) = check(value).findings
    assert finding.severity is severity


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"load_universal_checkpoint": True}, "checkpoint.load_universal"),
        ({"aio": {"num_threads": 4}}, "aio.intra_op_parallelism"),
        ({"tensorboard": {"log_dir": "x"}}, "tensorboard.output_path"),
    ],
)
def test_a_key_that_is_named_otherwise_elsewhere_is_answered_with_the_right_one(
    value: dict[str, Any], place: str
) -> None:
    (finding,) = check(value).findings
    assert (finding.hint, finding.is_mistake) == (f"the key in a ds_config is `{place}`", True)


def test_a_warmup_of_an_unknown_type_is_logarithmic() -> None:
    scheduler = {"type": "WarmupLR", "params": {"warmup_type": "cosine"}}
    (finding,) = check({"scheduler": scheduler}).findings
    assert (finding.severity, finding.message.endswith('DeepSpeed takes "log"')) == (Severity.IGNORED, True)
