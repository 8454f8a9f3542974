"""Arguments and settings that a ds_config makes dead: what is said of them."""

from typing import Any

from tests.each import each
from zlaunch.dsconfig.text.document import leaves
from zlaunch.errors import Severity
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import OwnSetting
from zlaunch.job.source import Source, SourceKind
from zlaunch.job.trainer_args import Argument, TrainerArgs, read_arguments
from zlaunch.job.unused_arguments import (
    ddp_arguments,
    unused_arguments,
    unused_in_training,
    unused_settings,
)

ADAMW = {"type": "AdamW", "params": {"lr": "auto"}}
CLIPPED: dict[str, Any] = {"gradient_clipping": "auto"}


def said(config: dict[str, Any], line: str) -> list[str]:
    args, _ = read_arguments(ScriptArgs.of(line.split()))
    return [finding.message for finding in unused_arguments(dict(leaves({**CLIPPED, **config})), args)]


def schedule(kind: str, **params: object) -> dict[str, Any]:
    return {"scheduler": {"type": kind, "params": params}}


def test_a_schedule_of_the_ds_config_replaces_that_of_the_arguments() -> None:
    (message,) = said(schedule("WarmupLR"), "--lr_scheduler_type cosine --lr_scheduler_kwargs {}")
    assert message == (
        "`--lr_scheduler_type cosine` and `--lr_scheduler_kwargs {}` have no effect: "
        "the ds_config has a `scheduler` section, with WarmupLR"
    )


@each(
    ("config", "line"),
    [
        ({"optimizer": ADAMW}, "--optim adafactor"),
        ({"optimizer": ADAMW}, "--optim_args a=1"),
        ({"optimizer": ADAMW}, "--weight_decay 0.1"),
        ({"optimizer": ADAMW}, "--adam_beta2 0.95"),
        (schedule("OneCycle", cycle_min_lr=0, cycle_max_lr=1), "--learning_rate 1e-05"),
        (schedule("LRRangeTest"), "--warmup_steps 7.0"),
        (schedule("WarmupDecayLR", total_num_steps=9), "--learning_rate 1e-05"),
        (schedule("WarmupCosineLR", total_num_steps=9), "--warmup_steps 7.0"),
    ],
)
def test_an_argument_without_effect_is_named(config: dict[str, Any], line: str) -> None:
    assert any(message.startswith(f"`{line}` has no effect") for message in said(config, line))


@each(
    ("config", "line"),
    [
        ({}, "--optim adafactor --lr_scheduler_type cosine --weight_decay 0.1 --max_grad_norm 0.5"),
        ({"optimizer": ADAMW}, "--lr_scheduler_type cosine --warmup_steps 7 --learning_rate 1e-5"),
        (schedule("WarmupLR", warmup_num_steps="auto"), "--learning_rate 1e-5 --warmup_steps 7 --optim sgd"),
        (schedule("WarmupDecayLR", warmup_max_lr="auto", total_num_steps=9), "--learning_rate 1e-5"),
    ],
)
def test_an_argument_with_an_effect_is_not_named(config: dict[str, Any], line: str) -> None:
    assert said(config, line) == []


def test_a_default_that_nobody_chose_is_not_named() -> None:
    args = TrainerArgs({"optim": Argument("sgd", Source(SourceKind.CONFIG_FILE, "ds.json:1"))})
    assert list(unused_arguments({("optimizer", "type"): "AdamW", ("gradient_clipping",): 1}, args)) == []


def test_arguments_of_ddp_are_only_mentioned() -> None:
    args, _ = read_arguments(ScriptArgs.of(["--ddp_find_unused_parameters", "False"]))
    (finding,) = ddp_arguments(args)
    assert finding.severity is Severity.ADVICE


def test_the_arguments_of_a_run_are_compared_with_what_its_engine_used() -> None:
    engine = {"gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
    (message,) = unused_in_training(
        engine, {"weight_decay": 0.1, "optim": "adamw_torch", "optim_args": "None"}
    )
    assert message.startswith("`--weight_decay 0.1` has no effect")


@each(
    ("written", "is_named"),
    [({"gradient_accumulation_steps": 1}, True), ({"gradient_accumulation_steps": 4}, False), ({}, False)],
)
def test_a_setting_of_accelerate_loses_to_a_number_of_the_ds_config(
    written: dict[str, int], is_named: bool
) -> None:
    path = ("gradient_accumulation_steps",)
    setting = OwnSetting("Accelerator", path[0], 4, path, "train.py:3")
    found = [finding.message for finding in unused_settings([setting], dict(leaves(written)), 1.0)]
    said = "`gradient_accumulation_steps=4` of Accelerator (train.py:3) has no effect: "
    assert found == [f"{said}`gradient_accumulation_steps` of the ds_config is 1"][:is_named]


def test_clipping_by_hand_loses_to_the_clipping_of_deepspeed() -> None:
    setting = OwnSetting("clip_grad_norm_", "max_norm", 0.5, ("gradient_clipping",), "train.py:9")
    (finding,) = unused_settings([setting], {("gradient_clipping",): "auto"}, 1.0)
    assert finding.hint == "write it there, or give `--set gradient_clipping=…`"


@each(
    ("precision", "switch", "is_named"),
    [("bf16", False, True), ("bf16", True, False), ("no", True, True), ("bf16", "auto", False)],
)
def test_a_precision_of_accelerate_loses_to_a_switch_of_the_ds_config(
    precision: str, switch: object, is_named: bool
) -> None:
    setting = OwnSetting("Accelerator", "mixed_precision", precision, ("mixed_precision",), "train.py:3")
    found = unused_settings([setting], {("bf16", "enabled"): switch}, 1.0)
    assert [finding.where for finding in found] == ["bf16.enabled"][:is_named]


def test_an_argument_of_a_dummy_optimizer_needs_its_key_in_the_section() -> None:
    setting = OwnSetting(
        "DummyOptim", "weight_decay", 0.1, ("optimizer", "params", "weight_decay"), "train.py:3"
    )
    (finding,) = unused_settings([setting], {("optimizer", "type"): "AdamW"}, 1.0)
    assert finding.hint == 'add `"weight_decay": "auto"` to `optimizer.params`'
    assert not list(unused_settings([setting], {("optimizer", "params", "weight_decay"): "auto"}, 1.0))
