"""The learning rate at every step: DeepSpeed's schedules and the Trainer's.

Step 0 is the first optimizer step. The formulas follow `deepspeed.runtime.lr_schedules` (0.19) and
`transformers.optimization` (5.x); a contract test compares them step by step. Asking the packages
themselves would import torch, which takes several times as long as all of `config resolve`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from zlaunch.dsconfig.schema.scheduler import (
    LrRangeTestParams,
    OneCycleParams,
    WarmupCosineParams,
    WarmupDecayParams,
    WarmupParams,
)
from zlaunch.frozen import dataclass

Curve = Callable[[int], float]
"""Step → learning rate."""


def _first_rate(rates: float | list[float] | str | None) -> float:
    """Take the rate of the first parameter group."""
    return float(rates[0] if isinstance(rates, list) else rates or 0.0)


def _warmed_up(params: WarmupParams | WarmupDecayParams | WarmupCosineParams, at: int) -> float | None:
    """How much of the warmup is done; None after it."""
    steps = max(2, int(params.warmup_num_steps))
    if at >= steps:
        return None
    if params.warmup_type == "linear":
        return at / steps
    return math.log(at + 1) / math.log(steps)


def _warmup(params: WarmupParams, base: float, at: int) -> float:
    low = _first_rate(params.warmup_min_lr)
    high = base if params.warmup_max_lr is None else _first_rate(params.warmup_max_lr)
    done = _warmed_up(params, at)
    return low + (high - low) * (1.0 if done is None else done)


def _warmup_decay(params: WarmupDecayParams, _: float, at: int) -> float:
    low, high, total = (
        _first_rate(params.warmup_min_lr),
        _first_rate(params.warmup_max_lr),
        int(params.total_num_steps),
    )
    done = _warmed_up(params, at)
    if done is None:
        done = max(0.0, (total - at) / max(1.0, total - max(2, int(params.warmup_num_steps))))
    return low + (high - low) * done


def _warmup_cosine(params: WarmupCosineParams, base: float, at: int) -> float:
    done = _warmed_up(params, at)
    if done is not None:
        return base * (params.warmup_min_ratio + done * (1.0 - params.warmup_min_ratio))
    steps = max(2, int(params.warmup_num_steps))
    fallen = min(1.0, (at - steps + 1) / max(1, int(params.total_num_steps) - steps))
    return base * max(0.0, params.cos_min_ratio + (1.0 - params.cos_min_ratio) * _cosine(fallen))


def _one_cycle(params: OneCycleParams, _: float, at: int) -> float:
    low, high, first = (
        _first_rate(params.cycle_min_lr),
        _first_rate(params.cycle_max_lr),
        params.cycle_first_step_size,
    )
    second = first if params.cycle_second_step_size is None else params.cycle_second_step_size
    after = at + 1 - first - second
    if after > 0:
        decays = params.decay_lr_rate * after
        if params.decay_step_size:
            return low / (1 + decays / params.decay_step_size)
        return low
    place = (at + 1) % (first + second)
    rises = place <= first
    passed, steps = (place, first) if rises else (first + second - place, second)
    later = params.cycle_second_stair_count
    stairs = params.cycle_first_stair_count if rises or later is None else later
    height = math.floor(passed * stairs / steps) / stairs if stairs else passed / steps
    return low + (high - low) * height


def _lr_range_test(params: LrRangeTestParams, _: float, at: int) -> float:
    interval = (at + 1) / params.lr_range_test_step_size
    passed = math.floor(interval) if params.lr_range_test_staircase else interval
    return _first_rate(params.lr_range_test_min_lr) * (1 + params.lr_range_test_step_rate * passed)


_Formula = Callable[[Any, float, int], float]
DEEPSPEED: Mapping[str, tuple[_Formula, str | None]] = {
    "WarmupLR": (_warmup, "warmup_min_lr"),
    "WarmupDecayLR": (_warmup_decay, "warmup_min_lr"),
    "WarmupCosineLR": (_warmup_cosine, None),
    "OneCycle": (_one_cycle, "cycle_min_lr"),
    "LRRangeTest": (_lr_range_test, "lr_range_test_min_lr"),
}
"""`scheduler.type` → the rate from parameters, base rate and iteration; the key of the first rate."""


def deepspeed_curve(name: str, params: Any, base: float) -> Curve:
    """Follow a schedule of DeepSpeed, one step behind its formula; `base` is the optimizer's rate."""
    formula, first = DEEPSPEED[name]
    before, last = (
        0.0 if first is None else _first_rate(getattr(params, first)),
        int(params.last_batch_iteration),
    )

    def rate(step: int) -> float:
        if step == 0 and last != -1:
            return base
        if step and last + step >= 0:
            return formula(params, base, last + step)
        return before

    return rate


@dataclass(frozen=True)
class ScheduleInputs:
    """The inputs of the Trainer's schedules."""

    peak: float
    """`--learning_rate`."""
    warmup: int
    total: int
    options: Mapping[str, Any]
    """`--lr_scheduler_kwargs`."""

    def option(self, name: str, default: float) -> float:
        """Look up a number in the options."""
        value = self.options.get(name)
        if value is None:
            return default
        return float(value)

    def progress(self, step: int) -> float:
        """Say how much of what follows the warmup is done."""
        return (step - self.warmup) / max(1, self.total - self.warmup)


def _cosine(done: float, cycles: float = 0.5) -> float:
    """Fall from 1 to 0 in half a cycle."""
    return 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * done))


def _wave(run: ScheduleInputs, step: int) -> float:
    return _cosine(run.progress(step), run.option("num_cycles", 0.5))


def _restarts(run: ScheduleInputs, step: int) -> float:
    done = run.progress(step)
    if done >= 1.0:
        return 0.0
    return _cosine((run.option("num_cycles", 1.0) * done) % 1.0)


def _polynomial(run: ScheduleInputs, step: int) -> float:
    end = run.option("lr_end", 1e-7)
    if step > run.total or run.total == run.warmup:
        return end / run.peak
    left = (1 - run.progress(step)) ** run.option("power", 1.0)
    return float((run.peak - end) * left + end) / run.peak


def _inverse_sqrt(run: ScheduleInputs, step: int) -> float:
    timescale = run.option("timescale", run.warmup or 10_000)
    return 1.0 / math.sqrt((step + timescale - run.warmup) / timescale)


def _wave_to_floor(run: ScheduleInputs, step: int) -> float:
    low = run.options.get("min_lr")
    floor = run.option("min_lr_rate", 0.0) if low is None else float(low) / run.peak
    return max(0.0, _wave(run, step) * (1 - floor) + floor)


def _warmup_and_wave_to_floor(run: ScheduleInputs, step: int) -> float:
    if step >= run.warmup:
        return _wave_to_floor(run, step + 1)
    if run.options.get("warmup_lr_rate") is None:
        return (step + 1.0) / max(1.0, run.warmup)
    start = run.option("warmup_lr_rate", 0.0)
    return start + (1.0 - start) * step / max(1, run.warmup - 1)


_FALLS: Mapping[str, Callable[[float, float], float]] = {
    "linear": lambda done, _: 1.0 - done,
    "cosine": _cosine,
    "1-sqrt": lambda done, _: 1.0 - math.sqrt(done),
}
"""How a share falls from 1 to 0; the Trainer's warmups are the same backwards."""


def _stable(run: ScheduleInputs, step: int) -> float:
    low, decay = run.option("min_lr_ratio", 0.0), int(run.option("num_decay_steps", 0))
    falling = step - run.warmup - int(run.option("num_stable_steps", run.total - run.warmup - decay))
    rise = _FALLS[str(run.options.get("warmup_type", "linear"))]
    fall = _FALLS[str(run.options.get("decay_type", "cosine"))]
    if step < run.warmup:
        return max(0.0, rise(1.0 - step / max(1, run.warmup), 0.5) * (1.0 - low) + low)
    if falling < 0:
        return 1.0
    share = fall(falling / decay, run.option("num_cycles", 0.5)) if falling < decay else 0.0
    return max(0.0, share * (1.0 - low) + low)


TRAINER: Mapping[str, Callable[[ScheduleInputs, int], float]] = {
    "linear": lambda run, step: max(0.0, (run.total - step) / max(1, run.total - run.warmup)),
    "cosine": lambda run, step: max(0.0, _wave(run, step)),
    "cosine_with_restarts": _restarts,
    "polynomial": _polynomial,
    "constant": lambda run, step: 1.0,
    "constant_with_warmup": lambda run, step: 1.0,
    "inverse_sqrt": _inverse_sqrt,
    "cosine_with_min_lr": _wave_to_floor,
    "cosine_warmup_with_min_lr": _warmup_and_wave_to_floor,
    "warmup_stable_decay": _stable,
}
"""`--lr_scheduler_type` → the share of the peak at a step."""

_WITHOUT_LINEAR_WARMUP = frozenset({"constant", "cosine_warmup_with_min_lr", "warmup_stable_decay"})


def trainer_curve(name: str, run: ScheduleInputs) -> Curve:
    """Follow a schedule of the Trainer; most rise linearly from 0 during the warmup."""
    warmup = 0 if name in _WITHOUT_LINEAR_WARMUP else run.warmup
    return lambda step: run.peak * (step / warmup if step < warmup else TRAINER[name](run, step))


UNPREDICTABLE = frozenset({"reduce_lr_on_plateau", "greedy"})
"""Schedules of the Trainer that follow how training goes."""

ENDLESS = frozenset(
    {"WarmupLR", "OneCycle", "LRRangeTest", "constant", "constant_with_warmup", "inverse_sqrt"}
)
"""Schedules whose curve does not depend on how long the run is."""
