"""Which schedule a job follows, and what is known of it."""

from typing import Any

import pytest

from zlaunch.config.resolve.compose import to_json
from zlaunch.config.resolve.lr_schedule import Schedule, schedule_of
from zlaunch.config.resolve.resolve import resolve_file
from zlaunch.config.rules.rule import Context
from zlaunch.dsconfig.text.parser import parse
from zlaunch.errors import WrongUsage
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface
from zlaunch.job.trainer_args import read_arguments

DECAY = {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_num_steps": "auto"}}
ADAM = {"type": "AdamW", "params": {"lr": 2e-3}}


def schedule(line: str = "", interface: ConfigInterface = ConfigInterface.TRAINER, **config: Any) -> Schedule:
    argv = line.split()
    args, _ = read_arguments(ScriptArgs.of(argv))
    document = parse(to_json(config), "ds_config.json")
    return schedule_of(
        resolve_file(document, Context(args=args, interface=interface)), interface, ScriptArgs.of(argv)
    )


def test_without_a_scheduler_the_trainers_counts() -> None:
    assert schedule("--lr_scheduler_type cosine").name == "cosine"


def test_a_scheduler_in_the_config_goes_before_the_trainers() -> None:
    assert schedule("--lr_scheduler_type cosine", scheduler=DECAY).name == "WarmupDecayLR"


def test_a_scheduler_in_the_config_names_its_line() -> None:
    assert schedule(scheduler=DECAY).source == "`scheduler.type`, ds_config.json:3"


def test_the_steps_are_those_of_max_steps() -> None:
    known = schedule("--max_steps 70")
    assert (known.num_steps, known.is_whole) == (70, True)


def test_a_total_in_the_config_is_the_length_of_the_run() -> None:
    config = {"type": "WarmupDecayLR", "params": {"total_num_steps": 300}}
    assert schedule(scheduler=config).num_steps == 300


def test_a_run_of_unknown_length_is_shown_as_shares() -> None:
    assert schedule("--warmup_steps 0.1").is_share


def test_a_share_of_warmup_ends_at_that_share() -> None:
    part = schedule("--warmup_steps 0.1")
    assert part.peak()[0] / part.num_steps == pytest.approx(0.1)


def test_a_count_of_warmup_steps_is_shown_in_steps() -> None:
    assert not schedule("--warmup_steps 50").is_share


def test_a_schedule_that_never_ends_is_shown_from_its_start() -> None:
    warmup = {"type": "WarmupLR", "params": {"warmup_num_steps": 40}}
    assert schedule(scheduler=warmup).num_steps == 80


def test_the_rate_of_the_optimizer_in_the_config_is_the_peak() -> None:
    assert schedule("--max_steps 10", optimizer=ADAM).peak() == (0, 2e-3)


def test_the_rate_of_the_arguments_is_the_peak() -> None:
    assert schedule("--max_steps 10 --learning_rate 1e-4").peak() == (0, 1e-4)


def test_an_optimizer_without_a_rate_has_deepspeeds_default() -> None:
    raw = ConfigInterface.DEEPSPEED
    assert schedule("", raw, optimizer={"type": "Adam"}, scheduler={"type": "WarmupLR", "params": {}}).peak()[
        1
    ] == pytest.approx(1e-3)


def test_where_only_the_script_knows_the_rate_it_is_a_multiple_of_it() -> None:
    cosine = {"type": "WarmupCosineLR", "params": {"total_num_steps": 50, "warmup_num_steps": 5}}
    assert schedule("", ConfigInterface.DEEPSPEED, scheduler=cosine).remarks == (
        "as a multiple of the rate of the script's optimizer",
    )


@pytest.mark.parametrize("interface", [ConfigInterface.ACCELERATE, ConfigInterface.DEEPSPEED])
def test_without_a_scheduler_a_script_has_its_own(interface: ConfigInterface) -> None:
    assert schedule("", interface).curve is None


def test_what_a_dummy_scheduler_brings_is_not_guessed() -> None:
    assert schedule("", ConfigInterface.ACCELERATE, scheduler=DECAY).curve is None


def test_a_schedule_of_torch_is_not_guessed() -> None:
    assert schedule(scheduler={"type": "StepLR", "params": {"step_size": 5}}).curve is None


def test_a_schedule_that_follows_the_loss_is_not_guessed() -> None:
    assert schedule("--lr_scheduler_type reduce_lr_on_plateau").curve is None


def test_a_schedule_that_nobody_knows_is_wrong_usage() -> None:
    with pytest.raises(WrongUsage, match="no schedule `cosin`"):
        schedule("--lr_scheduler_type cosin")


def test_options_of_a_schedule_are_read() -> None:
    line = '--lr_scheduler_type cosine_with_min_lr --max_steps 100 --lr_scheduler_kwargs {"min_lr_rate":0.5}'
    assert schedule(line).rate(99) == pytest.approx(2.5e-5, rel=1e-2)


def test_options_that_are_no_object_are_wrong_usage() -> None:
    with pytest.raises(WrongUsage, match="is not a JSON object"):
        schedule("--lr_scheduler_kwargs [1]")


@pytest.mark.parametrize(
    "line",
    [
        '--lr_scheduler_type polynomial --learning_rate 0 --lr_scheduler_kwargs {"power":2}',
        '--lr_scheduler_type inverse_sqrt --warmup_steps 20 --lr_scheduler_kwargs {"timescale":-5}',
        '--lr_scheduler_type cosine --lr_scheduler_kwargs {"num_cycles":"many"}',
        '--lr_scheduler_type warmup_stable_decay --lr_scheduler_kwargs {"warmup_type":"odd"}',
    ],
)
def test_settings_that_give_no_rate_are_not_drawn(line: str) -> None:
    assert schedule(line).curve is None
