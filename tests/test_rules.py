import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

import zlaunch.rules
from zlaunch.compose import preset
from zlaunch.dsconfig.config import DsConfig
from zlaunch.errors import Finding
from zlaunch.job import STAGES, Offload, Stage
from zlaunch.rules import judge
from zlaunch.rules.subject import Subject

Config = dict[str, Any]
WORLD_SIZE = 2


def _zero(**section: Any) -> Config:
    return {"zero_optimization": section}


CASES: dict[str, tuple[Config, Config]] = {
    "batch-equation": (
        {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
        {"train_batch_size": 16},
    ),
    "offload-needs-partitioning": (_zero(stage=0, offload_optimizer={"device": "cpu"}), _zero(stage=2)),
    "offload-param-needs-stage-3": (_zero(stage=2, offload_param={"device": "cpu"}), _zero(stage=3)),
    "nvme-needs-stage-3": (
        _zero(stage=2, offload_optimizer={"device": "nvme", "nvme_path": "/nvme"}),
        _zero(stage=3),
    ),
    "nvme-needs-a-path": (
        _zero(stage=3, offload_param={"device": "nvme"}),
        _zero(offload_param={"nvme_path": "/nvme"}),
    ),
    "both-formats": (
        {"fp16": {"enabled": True}, "bf16": {"enabled": True}},
        {"fp16": {"enabled": False}},
    ),
}

FINE: list[Config] = [
    {},
    {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4},
    {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3},
    _zero(stage=0, offload_optimizer={"device": "none"}),
    _zero(stage=2, offload_param={"device": "none"}),
    _zero(stage="auto", offload_param={"device": "auto"}),
    _zero(stage=1, offload_optimizer={"device": "cpu"}),
    {"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}},
    {"fp16": {"enabled": True}, "bf16": {"enabled": False}, "bfloat16": {"enabled": True}},
]


def _found(config: Config, world_size: int | None = WORLD_SIZE) -> list[Finding]:
    return judge(Subject(DsConfig.model_validate(config), world_size))


def _repaired(broken: Config, repair: Config) -> Config:
    merged = deepcopy(broken)
    for key, value in repair.items():
        merged[key] = _repaired(merged.get(key, {}), value) if isinstance(value, dict) else value
    return merged


def test_every_rule_has_its_case() -> None:
    folder = Path(zlaunch.rules.__file__).parent
    codes = [code for file in folder.glob("*.py") for code in re.findall(r'code="([^"]+)"', file.read_text())]
    assert sorted(codes) == sorted(CASES)


@pytest.mark.parametrize("code", CASES)
def test_a_rule_fires_on_what_it_is_about(code: str) -> None:
    assert [finding.code for finding in _found(CASES[code][0])] == [code]


@pytest.mark.parametrize("code", CASES)
def test_the_smallest_repair_silences_a_rule(code: str) -> None:
    assert _found(_repaired(*CASES[code])) == []


@pytest.mark.parametrize("code", CASES)
def test_a_rule_says_what_to_type(code: str) -> None:
    assert _found(CASES[code][0])[0].hint


@pytest.mark.parametrize("code", CASES)
def test_a_rule_points_at_a_key_that_is_there(code: str) -> None:
    node: Any = CASES[code][0]
    for part in _found(CASES[code][0])[0].where.split("."):
        node = node[part]
    assert node is not None


@pytest.mark.parametrize("config", FINE)
def test_no_rule_fires_on_what_is_fine(config: Config) -> None:
    assert _found(config) == []


@pytest.mark.parametrize("stage", STAGES.values())
def test_no_rule_fires_on_a_preset(stage: Stage) -> None:
    assert _found(preset(stage, Offload(), None)) == []


def test_the_batch_cannot_be_judged_without_the_ranks() -> None:
    assert _found(CASES["batch-equation"][0], world_size=None) == []


def test_the_older_name_of_bf16_counts_if_it_is_alone() -> None:
    config = {"fp16": {"enabled": True}, "bfloat16": {"enabled": True}}
    assert [finding.code for finding in _found(config)] == ["both-formats"]


def test_every_broken_rule_is_found() -> None:
    config = _repaired(CASES["batch-equation"][0], CASES["both-formats"][0])
    assert {finding.code for finding in _found(config)} == {"batch-equation", "both-formats"}
