"""What zlaunch hands over, the Trainer accepts: it compares a ds_config with its arguments."""

import itertools
from typing import Any

import pytest

from tests.contract.planned_side import planned
from tests.contract.trainer_side import all_auto, formats_of_the_trainer, trainer_fills
from tests.each import each
from tests.making import WRITTEN
from zlaunch.config.resolve.values import Values
from zlaunch.dsconfig.text.document import KeyPath, dotted
from zlaunch.errors import Refused
from zlaunch.job.trainer_args import MATCHED

COMPARED_BY_RULE = {"train_batch_size"}
"""Held against its three factors by `zlaunch.config.rules.batch`, whose numbers are the Trainer's by then."""

COMPARED = {dotted(path) for path in MATCHED} | COMPARED_BY_RULE

LINE = ("--max_steps", "100", "--warmup_steps", "10")


def written_out() -> Values:
    """Take a ds_config with every key the Trainer knows, and numbers it agrees with."""
    config = trainer_fills(all_auto(3), LINE).config
    config["zero_optimization"] |= {"overlap_comm": True, "sub_group_size": 1000}
    return Values.of({**config, "steps_per_print": 10, "wall_clock_breakdown": False}, WRITTEN)


def another(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case list():
            return [number / 2 for number in value]
    return value + 1


def keys() -> list[KeyPath]:
    return [path for path in written_out().leaves if path[-1] != "type"]


@each("path", keys, ids=dotted)
def test_the_trainer_compares_a_key_if_zlaunch_says_so_and_only_then(path: KeyPath) -> None:
    values = written_out()
    config = values.put(path, another(values[path]), WRITTEN).config()
    assert trainer_fills(config, LINE).mismatched == {dotted(path)} & COMPARED


SETTLED = [(path, match.names[0]) for path, match in MATCHED.items() if len(match.names) == 1]


@pytest.mark.parametrize(("path", "name"), SETTLED, ids=str)
def test_the_argument_of_a_compared_key_is_the_one_that_settles_it(path: KeyPath, name: str) -> None:
    config = Values.of({}, WRITTEN).put(path, 7, WRITTEN).config()
    assert trainer_fills(config, [f"--{name}", "7"]).mismatched == set()


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "a micro-batch": ({"train_micro_batch_size_per_gpu": 3}, ""),
    "an accumulation": ({"gradient_accumulation_steps": 5}, ""),
    "a total batch": ({"train_batch_size": 32}, ""),
    "a total batch and a micro-batch": ({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4}, ""),
    "a total batch and an accumulation": ({"train_batch_size": 32, "gradient_accumulation_steps": 4}, ""),
    "a clip": ({"gradient_clipping": 0.3}, ""),
    "no clip": ({"gradient_clipping": 0}, ""),
    "a learning rate": ({"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}, ""),
    "betas": ({"optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95]}}}, ""),
    "an epsilon": ({"optimizer": {"type": "AdamW", "params": {"lr": "auto", "eps": 1e-5}}}, ""),
    "a weight decay": ({"optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": 0.1}}}, ""),
    "a warmup rate": ({"scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3}}}, ""),
    "two learning rates": (
        {
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 2e-3}},
        },
        "",
    ),
    "warmup steps": ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}}, ""),
    "one warmup step": ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1}}}, ""),
    "warmup steps against no warmup": (
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}},
        "--warmup_steps 0",
    ),
    "warmup steps against another share": (
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}},
        "--warmup_steps 0.5 --max_steps 100",
    ),
    "total steps": (
        {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 50, "warmup_num_steps": 5}}},
        "",
    ),
    "bf16": ({"bf16": {"enabled": True}}, ""),
    "fp16": ({"fp16": {"enabled": True}}, ""),
    "bf16 against --fp16": ({"bf16": {"enabled": True}}, "--fp16"),
    "fp16 against --bf16": ({"fp16": {"enabled": True}}, "--bf16"),
    "no bf16 against --bf16": ({"bf16": {"enabled": False}}, "--bf16"),
    "no bf16 against evaluation in it": ({"bf16": {"enabled": False}}, "--bf16_full_eval"),
    "bf16 left open": ({"bf16": {"enabled": "auto"}}, ""),
    "no format against --bf16": ({}, "--bf16"),
}


NO_WAY_OUT = {"a total batch", "two learning rates"}
"""Numbers of one file that no argument can reconcile, with the other factors at their defaults."""


@each("case", [name for name in CASES if not CASES[name][1] and name not in NO_WAY_OUT])
def test_a_number_that_only_the_file_has_is_no_dispute(case: str) -> None:
    config, line = CASES[case]
    assert planned(config, line)


@each("case", CASES)
def test_the_trainer_has_no_quarrel_with_a_plan(case: str) -> None:
    config, line = CASES[case]
    try:
        plan = planned(config, line)
    except Refused:
        return
    rest, _ = plan.args.take_ds_config()
    assert trainer_fills(plan.values.config(), rest.words, world_size=2).mismatched == set()


SECTIONS: list[dict[str, Any]] = [
    {name: {"enabled": value} for name, value in zip(("bf16", "fp16"), values, strict=True) if value != "-"}
    for values in itertools.product(("-", "auto", True, False), repeat=2)
]
FLAGS = ("--bf16", "--fp16", "--bf16_full_eval", "--fp16_full_eval")
LINES = [" ".join(flags) for count in range(3) for flags in itertools.combinations(FLAGS, count)]


@each("config, line", list(itertools.product(SECTIONS, LINES)))
def test_formats_of_training_and_of_evaluation_are_refused_where_the_trainer_refuses_them(
    config: dict[str, Any], line: str
) -> None:
    given = {"zero_optimization": {"stage": 2}, **config}
    try:
        plan = planned(config, line)
    except Refused:
        assert formats_of_the_trainer(given, line.split()) is None
        return
    rest, _ = plan.args.take_ds_config()
    on = {name for name in ("bf16", "fp16") if plan.values[(name, "enabled")]}
    assert formats_of_the_trainer(given, rest.words) == on
    assert formats_of_the_trainer(plan.values.config(), rest.words) == on
