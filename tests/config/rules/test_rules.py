import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.each import each
from tests.running import CONFIGS
from zlaunch.config.resolve.autos import _FILL
from zlaunch.config.resolve.compose import preset
from zlaunch.config.rules import RULES, apply_rules
from zlaunch.config.rules.rule import Context, Rule, Subject
from zlaunch.config.validate import validate_document
from zlaunch.dsconfig.keys.auto_keys import FILLED
from zlaunch.dsconfig.keys.read_at import stages_reading
from zlaunch.dsconfig.read import read
from zlaunch.dsconfig.releases import RELEASES, release
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.zero import Zero
from zlaunch.dsconfig.schema_check import check
from zlaunch.errors import Finding, Severity
from zlaunch.job.args import ScriptArgs
from zlaunch.job.model import ModelConfig
from zlaunch.job.script import ConfigInterface
from zlaunch.job.spec import STAGES, Offload, Stage
from zlaunch.job.trainer_args import read_arguments

Config = dict[str, Any]
BATCH = {"train_micro_batch_size_per_gpu": 1}

FINE: list[Config] = [
    {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4},
    {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 3,
        "zero_optimization": {"stage": 1},
    },
    {**BATCH, "zero_optimization": {"stage": 0, "offload_optimizer": {"device": "none"}}},
    {**BATCH, "zero_optimization": {"stage": 2, "offload_param": {"device": "none"}}},
    {**BATCH, "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}},
    {**BATCH, "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 0}},
    {**BATCH, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}},  # of a host with more GPUs
    {
        **BATCH,
        "gradient_accumulation_steps": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {"device": "cpu"},
            "zenflow": {"select_strategy": "step", "select_interval": 4, "update_interval": 4},
        },
    },
]

CORPUS = sorted(Path(__file__).with_name("corpus").glob("*.json"))
"""ds_config files as people have them; a name says which of them are for the Trainer."""

each_rule = each("rule", RULES, ids=lambda rule: rule.code)


def broken(rule: Rule) -> Config:
    """Add what every config needs, so that a case shows only what it is about."""
    config = deepcopy(dict(rule.broken))
    keys = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"}
    return config if keys & set(config) else {**BATCH, **config}


def mended(rule: Rule) -> Config:
    config = broken(rule)
    for where, value in rule.repair.items():
        *sections, key = where.split(".")
        node = config
        for section in sections:
            node = node.setdefault(section, {})
        if value is None:
            del node[key]
        else:
            node[key] = value
    return config


def found(config: Config, context: Context = Context()) -> list[Finding]:  # noqa: B008
    return apply_rules(Subject(DsConfig.model_validate(config), context))


def weighty(findings: list[Finding], rule: Rule) -> list[Finding]:
    """Leave out what others advise."""
    return [one for one in findings if one.severity is not Severity.ADVICE or one.code == rule.code]


def test_every_code_is_a_rules_own() -> None:
    codes = [rule.code for rule in RULES]
    assert sorted(codes) == sorted(set(codes))


@each_rule
def test_a_rule_says_what_deepspeed_does(rule: Rule) -> None:
    assert rule.why.strip().endswith(".")


@each_rule
def test_a_rule_fires_on_what_it_is_about(rule: Rule) -> None:
    findings = found(broken(rule), rule.context)
    assert {finding.code for finding in weighty(findings, rule)} == {rule.code}


@each_rule
def test_the_smallest_repair_silences_a_rule(rule: Rule) -> None:
    assert weighty(found(mended(rule), rule.context), rule) == []


@each_rule
def test_a_rule_is_about_a_config_without_other_mistakes(rule: Rule) -> None:
    assert check(broken(rule)).findings == ()


@each_rule
def test_a_rule_says_what_to_type(rule: Rule) -> None:
    assert all(finding.hint for finding in found(broken(rule), rule.context))


@each_rule
def test_a_rule_points_at_a_key_that_is_there(rule: Rule) -> None:
    node: Any = broken(rule)
    where = weighty(found(broken(rule), rule.context), rule)[0].where
    for part in filter(None, where.split(".")):
        assert part in node
        node = node[part]


@pytest.mark.parametrize("config", FINE)
def test_no_rule_fires_on_what_is_fine(config: Config) -> None:
    assert found(config, Context(world_size=2)) == []


def test_a_warmup_does_not_outlast_a_run_of_unknown_length() -> None:
    """Without `--max_steps` the Trainer's default is -1: the epochs decide."""
    scheduler = {"type": "WarmupLR", "params": {"warmup_num_steps": 100}}
    optimizer = {"type": "AdamW", "params": {"lr": 1e-3}}
    config = {**BATCH, "optimizer": optimizer, "scheduler": scheduler}
    findings = found(
        config, Context(world_size=2, args=read_arguments(ScriptArgs.of(["--learning_rate", "1e-3"]))[0])
    )
    assert "warmup-outlasts-the-run" not in {finding.code for finding in findings}


@pytest.mark.parametrize("stage", STAGES.values())
def test_no_rule_fires_on_a_preset(stage: Stage) -> None:
    assert found(preset(stage, Offload(), None)) == []


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.json")), ids=lambda file: file.stem)
def test_no_rule_but_advice_fires_on_a_config_that_was_trained_with(file: Any) -> None:
    findings = found(json.loads(file.read_text()))
    assert [finding for finding in findings if finding.severity is not Severity.ADVICE] == []


def interface_of(file: Path) -> ConfigInterface:
    return (
        ConfigInterface.TRAINER
        if file.stem.startswith(("trainer", "accelerate"))
        else ConfigInterface.DEEPSPEED
    )


@each("file", CORPUS, ids=lambda file: file.stem)
@each("world_size", [None, 8])
def test_nothing_but_advice_is_found_in_what_people_write(file: Path, world_size: int | None) -> None:
    context = Context(world_size=world_size, interface=interface_of(file))
    findings = validate_document(read(file), context)
    assert [finding for finding in findings if finding.severity is not Severity.ADVICE] == []


def test_every_zero_key_says_where_it_is_read() -> None:
    for key in Zero.model_fields:
        assert stages_reading(key) <= {0, 1, 2, 3}


def test_a_threshold_outside_of_the_zero_section_is_not_made_of_the_hidden_size() -> None:
    scheduler = {"type": "ReduceLROnPlateau", "params": {"threshold": "auto"}}
    context = Context(model=ModelConfig({}, "", "config.json"))
    findings = found({**BATCH, "zero_optimization": {"stage": 3}, "scheduler": scheduler}, context)
    assert "no-hidden-size" not in [finding.code for finding in findings]


def test_every_auto_that_somebody_fills_in_says_what_deepspeed_alone_makes_of_it() -> None:
    assert set(FILLED) == set(_FILL)


def test_the_older_name_of_bf16_counts_if_it_is_alone() -> None:
    config = {**BATCH, "fp16": {"enabled": True}, "bfloat16": {"enabled": True}}
    assert "both-formats" in [finding.code for finding in found(config)]


def test_stage_0_accumulates_bf16_gradients_in_fp32_where_deepspeed_can() -> None:
    config: Config = {
        "train_batch_size": 8,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {"stage": 0},
    }
    refusing = [
        name
        for name in RELEASES
        if "accumulation-needs-partitioning"
        in {f.code for f in found(config, Context(release=release(name)))}
    ]
    assert refusing == ["0.19"]


def test_a_default_that_changed_matters_in_no_offload_to_nowhere() -> None:
    upgraded = Context(release=release("0.18"), is_upgrade=True)
    told = []
    for device in ("none", "cpu"):
        zero = {"stage": 2, "offload_optimizer": {"device": device}}
        findings = found({**BATCH, "zero_optimization": zero}, upgraded)
        told.append([one.where for one in findings if one.code == "default-changed"])
    assert [one.count("zero_optimization.offload_optimizer") for one in told] == [0, 1]


def test_every_broken_rule_is_found() -> None:
    config = {
        "train_batch_size": 5,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "fp16": {"enabled": True},
        "bf16": {"enabled": True},
    }
    assert {finding.code for finding in found(config, Context(world_size=2))} == {
        "batch-equation",
        "both-formats",
    }
