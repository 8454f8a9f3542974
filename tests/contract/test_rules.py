"""What a rule's severity says of DeepSpeed, and that it says nothing of configs that are fine."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.config.rules.test_rules import CORPUS, broken, interface_of, mended
from tests.contract.deepspeed_side import deepspeed_reads
from tests.contract.trainer_side import trainer_fills
from tests.each import each
from tests.making import WRITTEN
from zlaunch.config.resolve.autos import resolve_autos
from zlaunch.config.resolve.values import Values
from zlaunch.config.rules import RULES
from zlaunch.config.rules.rule import Rule
from zlaunch.errors import Severity
from zlaunch.job.script import ConfigInterface
from zlaunch.job.trainer_args import TrainerArgs

Config = dict[str, Any]

REFUSED_BY_OTHERS = {"no-zero-section": "accelerate refuses it while TrainingArguments are parsed"}
"""Errors that come before DeepSpeed reads the config."""

each_rule = each("rule", RULES, ids=lambda rule: rule.code)


def handed_over(config: Config, rule: Rule) -> Config:
    """Fill in what the Trainer would, if it is the Trainer that the rule is about."""
    context = rule.context
    if context.interface is not ConfigInterface.TRAINER:
        return config
    args = context.args or TrainerArgs()
    known = replace(context, args=args, world_size=context.world_size or 1)
    return resolve_autos(Values.of(config, WRITTEN), known).values.config()


def is_refused(config: Config, rule: Rule) -> bool:
    try:
        deepspeed_reads(handed_over(config, rule), rule.context.world_size or 1)
    except Exception:  # noqa: BLE001 - whatever stops DeepSpeed
        return True
    return False


NEVER_SEEN = "batch-differs-from-arguments"
"""The Trainer refuses these numbers before DeepSpeed sees them: a test of its own, below, shows it."""


@each("rule", [rule for rule in RULES if rule.code != NEVER_SEEN], ids=lambda rule: rule.code)
def test_deepspeed_refuses_what_an_error_is_about_and_nothing_else(rule: Rule) -> None:
    refuses = rule.severity is Severity.ERROR and rule.code not in REFUSED_BY_OTHERS
    assert is_refused(broken(rule), rule) == refuses


@each_rule
def test_deepspeed_accepts_the_repair(rule: Rule) -> None:
    assert not is_refused(mended(rule), rule)


@pytest.mark.parametrize("code", ["differs-from-argument", NEVER_SEEN])
def test_the_trainer_refuses_numbers_that_differ_from_its_arguments(code: str) -> None:
    (rule,) = [rule for rule in RULES if rule.code == code]
    argv = [
        word
        for name, one in (rule.context.args or TrainerArgs()).arguments.items()
        for word in (f"--{name}", f"{one.value}")
    ]
    world_size = rule.context.world_size or 1
    assert trainer_fills(broken(rule), argv, world_size=world_size).mismatched
    assert not trainer_fills(mended(rule), argv, world_size=world_size).mismatched


@pytest.mark.parametrize("rate", ["1e-4", "6e-4", "3e-4"])
def test_the_trainer_refuses_two_learning_rates_whatever_its_argument_is(rate: str) -> None:
    (rule,) = [rule for rule in RULES if rule.code == "no-learning-rate-suits-both"]
    assert trainer_fills(broken(rule), ["--learning_rate", rate]).mismatched


def test_accelerate_refuses_a_config_without_zero() -> None:
    with pytest.raises(ValueError, match="Please specify the ZeRO optimization config"):
        accelerate_reads({"train_micro_batch_size_per_gpu": 1})
    assert accelerate_reads({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 0}})


def test_accelerate_refuses_an_auto_that_no_dummy_fills_in() -> None:
    (rule,) = [rule for rule in RULES if rule.code == "auto-of-a-dummy"]
    config = {key: value for key, value in broken(rule).items() if key != "train_micro_batch_size_per_gpu"}
    with pytest.raises(ValueError, match="warmup_max_lr` not found in kwargs"):
        accelerate_reads(config).deepspeed_config_process(must_match=False)


def accelerate_reads(config: Config) -> Any:
    from accelerate.utils import DeepSpeedPlugin

    return DeepSpeedPlugin(hf_ds_config=config)


@each(
    "file",
    [file for file in CORPUS if interface_of(file) is ConfigInterface.DEEPSPEED],
    ids=lambda file: file.stem,
)
def test_deepspeed_accepts_what_people_write(file: Path) -> None:
    config = json.loads(file.read_text())
    mesh = config.get("sequence_parallel_size", 1) * config.get("data_parallel_size", 1)
    assert deepspeed_reads(config, mesh)
