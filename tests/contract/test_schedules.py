"""The learning rate at every step, against DeepSpeed's schedulers and the Trainer's."""

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from zlaunch.config.resolve.lr_curves import (
    DEEPSPEED,
    TRAINER,
    UNPREDICTABLE,
    Curve,
    ScheduleInputs,
    deepspeed_curve,
    trainer_curve,
)
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.scheduler import DEEPSPEED_SCHEDULERS

BASE = 3e-4
STEPS = 60


def grid(**choices: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in zip(choices, values, strict=True) if value is not None}
        for values in itertools.product(*choices.values())
    ]


WARMUP = {
    "warmup_num_steps": (1, 2, 7, 50),
    "warmup_type": ("log", "linear"),
    "last_batch_iteration": (-1, 4),
}
LENGTHS = {"total_num_steps": (5, 40, 55)}
OURS: dict[str, list[dict[str, Any]]] = {
    "WarmupLR": grid(**WARMUP, warmup_min_lr=(0.0, 1e-5), warmup_max_lr=(None, 1e-3, [2e-3])),
    "WarmupDecayLR": grid(**WARMUP, **LENGTHS, warmup_min_lr=(0.0, 1e-5), warmup_max_lr=(None, 1e-2)),
    "WarmupCosineLR": grid(**WARMUP, **LENGTHS, warmup_min_ratio=(0.0, 0.3), cos_min_ratio=(None, 0.2)),
    "OneCycle": [
        {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-3, **shape, **stairs, **decay}
        for shape in grid(cycle_first_step_size=(4, 13), cycle_second_step_size=(None, 9))
        for stairs in grid(cycle_first_stair_count=(0, 3), cycle_second_stair_count=(None, 0, 2))
        for decay in grid(
            decay_step_size=(0, 3),
            decay_lr_rate=(0.0, 0.1),
            last_batch_iteration=(-1, 4),
            cycle_momentum=(False,),
        )
    ],
    "LRRangeTest": grid(
        lr_range_test_min_lr=(1e-4,),
        lr_range_test_step_size=(1, 7),
        lr_range_test_step_rate=(1.0, 5.0),
        lr_range_test_staircase=(False, True),
        last_batch_iteration=(-1, 4),
    ),
}


def optimizer() -> Any:
    import torch

    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=BASE)


def rates_of(make: Callable[[Any], Any]) -> list[float]:
    """Train for some steps, and note the rate of each."""
    trained = optimizer()
    scheduler, rates = make(trained), []
    for _ in range(STEPS):
        rates.append(float(trained.param_groups[0]["lr"]))
        trained.step()
        scheduler.step()
    return rates


def drawn(curve: Curve) -> list[float]:
    return [curve(step) for step in range(STEPS)]


@pytest.mark.parametrize("name", DEEPSPEED_SCHEDULERS)
def test_a_schedule_of_deepspeed_is_the_one_deepspeed_follows(name: str) -> None:
    from deepspeed.runtime import lr_schedules

    for params in OURS[name]:
        scheduler: Any = DsConfig.model_validate({"scheduler": {"type": name, "params": params}}).scheduler
        theirs = rates_of(functools.partial(getattr(lr_schedules, name), **params))
        assert drawn(deepspeed_curve(name, scheduler.params, BASE)) == pytest.approx(
            theirs, rel=1e-9, abs=1e-15
        ), params


def test_every_scheduler_of_deepspeed_has_a_curve() -> None:
    from deepspeed.runtime import lr_schedules

    assert {*DEEPSPEED} == {*DEEPSPEED_SCHEDULERS} == {*lr_schedules.VALID_LR_SCHEDULES}


def test_every_scheduler_of_the_trainer_has_a_curve_or_cannot_be_known() -> None:
    from transformers.trainer_utils import SchedulerType

    assert {*TRAINER} | UNPREDICTABLE == {kind.value for kind in SchedulerType}


OPTIONS: dict[str, list[dict[str, Any]]] = {
    "cosine": grid(num_cycles=(None, 1.5)),
    "cosine_with_restarts": grid(num_cycles=(None, 3)),
    "polynomial": grid(power=(None, 2.0), lr_end=(None, 1e-5)),
    "inverse_sqrt": grid(timescale=(None, 20)),
    "cosine_with_min_lr": [{"min_lr": 1e-5}, {"min_lr_rate": 0.1}, {"min_lr_rate": 0.1, "num_cycles": 1.5}],
    "cosine_warmup_with_min_lr": [
        {"min_lr": 1e-5}, {"min_lr_rate": 0.1}, {"min_lr_rate": 0.1, "warmup_lr_rate": 0.2}
    ],
    "warmup_stable_decay": [
        {"num_decay_steps": 9, **more}
        for more in grid(
            num_stable_steps=(None, 11),
            warmup_type=(None, "linear", "cosine", "1-sqrt"),
            decay_type=(None, "linear", "cosine", "1-sqrt"),
            min_lr_ratio=(None, 0.1),
        )
    ],
}  # fmt: skip


def trainer_cells(name: str) -> Iterator[tuple[int, int, dict[str, Any]]]:
    yield from itertools.product((0, 1, 7, 50), (40, 55, 100), OPTIONS.get(name, [{}]))


@pytest.mark.parametrize("name", sorted(TRAINER))
def test_a_schedule_of_the_trainer_is_the_one_transformers_follows(name: str) -> None:
    from transformers import get_scheduler

    for warmup, total, options in trainer_cells(name):
        settings = {"num_warmup_steps": warmup, "num_training_steps": total}
        make = functools.partial(get_scheduler, name, scheduler_specific_kwargs=dict(options), **settings)
        theirs = rates_of(make)
        ours = drawn(trainer_curve(name, ScheduleInputs(BASE, warmup, total, options)))
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-15), (warmup, total, options)
