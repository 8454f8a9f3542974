import json
from pathlib import Path
from typing import Any

import pytest

from zlaunch.config.resolve.compose import (
    ALWAYS_WRITTEN,
    DEFAULT_STAGE,
    compose,
    offload_sections,
    preset,
    to_json,
)
from zlaunch.config.resolve.values import Values
from zlaunch.dsconfig.text.document import Document, KeyPath
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import WrongUsage
from zlaunch.job.spec import STAGES, JobSpec, Offload, Stage

ZERO = "zero_optimization"
CPU = Offload(optimizer="cpu")
NVME = Offload(optimizer="nvme")
OFFLOADED = '{"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/old"}}}'


def _job(**asked: Any) -> JobSpec:
    return JobSpec(script=Path("train.py"), **asked)


def _file(text: str) -> Document:
    return parse(text, "ds.json")


def _source(values: Values, *path: str) -> str:
    return str(values.leaves[path].source)


@pytest.mark.parametrize("stage", STAGES.values())
def test_a_preset_has_its_stage(stage: Stage) -> None:
    assert preset(stage, Offload(), None)[ZERO]["stage"] == stage


def test_a_preset_for_stage_0_partitions_nothing() -> None:
    assert preset(0, Offload(), None)[ZERO] == {"stage": 0}


def test_a_preset_for_stage_3_saves_the_whole_model() -> None:
    assert preset(3, Offload(), None)[ZERO]["stage3_gather_16bit_weights_on_model_save"] is True


@pytest.mark.parametrize("path", ALWAYS_WRITTEN)
def test_a_preset_leaves_to_the_trainer_what_is_the_trainers(path: KeyPath) -> None:
    assert preset(2, Offload(), None)[str(path[0])] == "auto"


@pytest.mark.parametrize(
    ("stage", "offload", "devices"),
    [
        (2, Offload(), {}),
        (2, CPU, {"offload_optimizer": "cpu"}),
        (3, CPU, {"offload_optimizer": "cpu", "offload_param": "cpu"}),
        (3, NVME, {"offload_optimizer": "nvme", "offload_param": "nvme"}),
        (3, Offload(optimizer="cpu", param="none"), {"offload_optimizer": "cpu"}),
        (3, Offload(optimizer="none", param="nvme"), {"offload_param": "nvme"}),
        (2, Offload(optimizer="cpu", param="cpu"), {"offload_optimizer": "cpu", "offload_param": "cpu"}),
        (3, Offload(optimizer="none", param="none"), {}),
    ],
)
def test_an_offload_moves_what_the_stage_allows(
    stage: int, offload: Offload, devices: dict[str, str]
) -> None:
    sections = offload_sections(stage, offload, None)
    assert {name: section["device"] for name, section in sections.items()} == devices


def test_an_offload_to_nvme_names_the_directory() -> None:
    assert offload_sections(2, NVME, Path("/nvme"))["offload_optimizer"]["nvme_path"] == "/nvme"


def test_an_offload_to_the_cpu_names_no_directory() -> None:
    assert "nvme_path" not in offload_sections(2, CPU, Path("/nvme"))["offload_optimizer"]


def test_a_job_that_asks_for_nothing_gets_the_default_stage() -> None:
    assert compose(_job(), None).config() == preset(DEFAULT_STAGE, Offload(), None)


def test_a_value_of_a_preset_names_the_preset() -> None:
    assert _source(compose(_job(), None), ZERO, "stage") == "preset for stage 2"


@pytest.mark.parametrize(
    ("asked", "path", "flag"),
    [
        ({"stage": 3}, (ZERO, "stage"), "`--stage`"),
        ({"offload": CPU}, (ZERO, "offload_optimizer", "device"), "`--offload`"),
        ({"offload": NVME, "nvme_dir": Path("/n")}, (ZERO, "offload_optimizer", "nvme_path"), "`--nvme`"),
        ({"precision": "bf16"}, ("bf16", "enabled"), "`--precision`"),
        ({"overrides": (("fp16.hysteresis", 3),)}, ("fp16", "hysteresis"), "`--set`"),
    ],
)
@pytest.mark.parametrize("base", [None, _file("{}")], ids=["preset", "file"])
def test_a_value_that_a_flag_set_names_the_flag(
    asked: dict[str, Any], path: tuple[str, ...], flag: str, base: Document | None
) -> None:
    assert _source(compose(_job(**asked), base), *path) == flag


def test_a_value_of_the_users_file_names_its_line() -> None:
    values = compose(_job(), _file('{\n"bf16": {\n"enabled": true}}'))
    assert _source(values, "bf16", "enabled") == "ds.json:3"


@pytest.mark.parametrize("path", ALWAYS_WRITTEN)
def test_what_the_users_file_leaves_out_is_left_to_the_trainer(path: KeyPath) -> None:
    assert compose(_job(), _file("{}"))[path] == "auto"


def test_the_users_file_gets_nothing_else_from_a_preset() -> None:
    assert set(compose(_job(), _file("{}")).leaves) == {*ALWAYS_WRITTEN, ("zero_optimization", "stage")}


def test_what_the_users_file_says_stays() -> None:
    assert compose(_job(), _file('{"train_batch_size": 8}'))[("train_batch_size",)] == 8


def test_a_stage_goes_before_the_users_file() -> None:
    assert compose(_job(stage=1), _file(OFFLOADED))[(ZERO, "stage")] == 1


def test_an_offload_replaces_all_offloading_in_the_users_file() -> None:
    values = compose(_job(offload=Offload(optimizer="cpu", param="none")), _file(OFFLOADED))
    assert values.config()[ZERO] == {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}}


def test_no_offload_removes_all_offloading_from_the_users_file() -> None:
    values = compose(_job(offload=Offload(optimizer="none", param="none")), _file(OFFLOADED))
    assert values.config()[ZERO] == {"stage": 3}


def test_an_offload_moves_parameters_at_the_stage_of_the_users_file() -> None:
    values = compose(_job(offload=CPU), _file('{"zero_optimization": {"stage": 3}}'))
    assert values[(ZERO, "offload_param", "device")] == "cpu"


def test_an_nvme_directory_replaces_the_one_in_the_users_file() -> None:
    values = compose(_job(nvme_dir=Path("/new")), _file(OFFLOADED))
    assert values[(ZERO, "offload_param", "nvme_path")] == "/new"


def test_an_nvme_directory_is_not_for_parts_that_stay() -> None:
    values = compose(_job(nvme_dir=Path("/new")), _file(OFFLOADED))
    assert not values.has((ZERO, "offload_optimizer"))


def test_deepspeeds_default_for_pinned_memory_is_written_out() -> None:
    assert compose(_job(), _file(OFFLOADED))[(ZERO, "offload_param", "pin_memory")] is True


def test_pinned_memory_stays_as_the_users_file_has_it() -> None:
    text = '{"zero_optimization": {"offload_param": {"device": "cpu", "pin_memory": false}}}'
    assert compose(_job(), _file(text))[(ZERO, "offload_param", "pin_memory")] is False


@pytest.mark.parametrize(
    ("precision", "enabled"), [("bf16", (True, False)), ("fp16", (False, True)), ("fp32", (False, False))]
)
def test_a_precision_switches_one_format_on(precision: str, enabled: tuple[bool, bool]) -> None:
    values = compose(_job(precision=precision), _file('{"fp16": {"enabled": true}}'))
    assert (values[("bf16", "enabled")], values[("fp16", "enabled")]) == enabled


def test_an_override_goes_before_a_preset_and_the_users_file() -> None:
    job = _job(overrides=(("zero_optimization.stage", 1),))
    assert [compose(job, base)[(ZERO, "stage")] for base in (None, _file(OFFLOADED))] == [1, 1]


@pytest.mark.parametrize(
    ("asked", "key", "value"),
    [
        ({"stage": 3}, "zero_optimization.stage", 2),
        ({"stage": 3}, "zero_optimization", {"stage": 2}),
        ({"precision": "fp32"}, "bf16.enabled", True),
        ({"offload": Offload("cpu")}, "zero_optimization.offload_optimizer.device", "none"),
        ({"offload": Offload("cpu")}, "zero_optimization.offload_optimizer", None),
    ],
)
def test_an_override_does_not_contradict_another_option(
    asked: dict[str, Any], key: str, value: object
) -> None:
    with pytest.raises(WrongUsage, match=f"`--{next(iter(asked))}` sets `{key}"):
        compose(_job(**asked, overrides=((key, value),)), None)


def test_an_override_may_repeat_another_option_and_add_to_it() -> None:
    job = _job(stage=3, overrides=(("zero_optimization", {"stage": 3, "sub_group_size": 1000}),))
    assert compose(job, None)[(ZERO, "sub_group_size")] == 1000


def test_the_last_of_two_overrides_wins() -> None:
    assert compose(_job(overrides=(("a", 1), ("a", 2))), None)[("a",)] == 2


def test_an_override_with_an_object_sets_all_that_is_in_it() -> None:
    job = _job(overrides=(("zero_optimization", {"stage": 3, "reduce_bucket_size": "auto"}),))
    assert compose(job, None).leaves.keys() >= {(ZERO, "stage"), (ZERO, "reduce_bucket_size")}


def test_a_config_is_written_as_strict_json() -> None:
    config = preset(3, CPU, None)
    assert json.loads(to_json(config)) == config


def test_a_written_config_ends_with_its_line() -> None:
    assert to_json({"a": 1}) == '{\n  "a": 1\n}\n'


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("base", [None, _file('{"zero_optimization": {"stage": 3}}')])
@pytest.mark.parametrize("chosen", ["--stage", "--set"])
def test_below_stage_3_no_key_is_written_that_only_stage_3_reads(
    stage: Stage, base: Document | None, chosen: str
) -> None:
    asked: dict[str, Any] = {"stage": stage}
    if chosen == "--set":
        asked = {"overrides": ((f"{ZERO}.stage", stage),)}
    values = compose(_job(offload=Offload("cpu", "nvme"), nvme_dir=Path("/nvme"), **asked), base)
    read_at_3 = {"sub_group_size", "stage3_prefetch_bucket_size", "stage3_max_reuse_distance"}
    assert not read_at_3 & values.config()[ZERO].keys()


def test_a_stage_of_set_decides_what_is_offloaded() -> None:
    values = compose(_job(offload=CPU, overrides=((f"{ZERO}.stage", 3),)), None)
    assert values.has((ZERO, "offload_param"))
