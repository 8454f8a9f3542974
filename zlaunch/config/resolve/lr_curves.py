"""The learning rate at every step: DeepSpeed's own schedules, and those of the Trainer.

Step 0 is the first optimizer step. DeepSpeed moves a schedule on after each step, and before the first one
sets a rate of its own; so its schedules are one step behind what their formulas say. They follow
`deepspeed.runtime.lr_schedules` (0.19) and `transformers.optimization` (5.x); a contract test holds both,
step by step.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zlaunch.dsconfig.schema.scheduler import (
    LrRangeTestParams,
    OneCycleParams,
    WarmupCosineParams,
    WarmupDecayParams,
    WarmupParams,
)

Curve = Callable[[int], float]
"""Step → learning rate."""
_AnyWarmup = WarmupParams | WarmupDecayParams | WarmupCosineParams


def _first(rates: Any) -> float:
    """Take the rate of the first parameter group."""
    return float(rates[0] if isinstance(rates, list) else rates)


def _risen(params: _AnyWarmup, iteration: int) -> float | None:
    """Say how much of the warmup is done; None after it."""
    steps = max(2, int(params.warmup_num_steps))
    if iteration >= steps:
        return None
    return iteration / steps if params.warmup_type == "linear" else math.log(iteration + 1) / math.log(steps)


def _started(last: int, before: float, base: float, formula: Callable[[int], float]) -> Curve:
    """Follow a formula over DeepSpeed's iterations; `before` the first, or `base` if it goes on from one."""

    def rate(step: int) -> float:
        if step == 0:
            return before if last == -1 else base
        return formula(last + step) if last + step >= 0 else before

    return rate


def _between(low: float, high: float, formula: Callable[[int], float]) -> Callable[[int], float]:
    return lambda iteration: low + (high - low) * formula(iteration)


def _warmup(params: WarmupParams, base: float) -> Curve:
    low = _first(params.warmup_min_lr)
    high = base if params.warmup_max_lr is None else _first(params.warmup_max_lr)

    def done(iteration: int) -> float:
        risen = _risen(params, iteration)
        return 1.0 if risen is None else risen

    return _started(params.last_batch_iteration, low, base, _between(low, high, done))


def _warmup_decay(params: WarmupDecayParams, base: float) -> Curve:
    low, high, total = _first(params.warmup_min_lr), _first(params.warmup_max_lr), int(params.total_num_steps)
    decay = max(1.0, total - max(2, int(params.warmup_num_steps)))

    def done(iteration: int) -> float:
        risen = _risen(params, iteration)
        return max(0.0, (total - iteration) / decay) if risen is None else risen

    return _started(params.last_batch_iteration, low, base, _between(low, high, done))


def _warmup_cosine(params: WarmupCosineParams, base: float) -> Curve:
    steps = max(2, int(params.warmup_num_steps))
    decay = max(1, int(params.total_num_steps) - steps)

    def ratio(iteration: int) -> float:
        risen = _risen(params, iteration)
        if risen is not None:
            return params.warmup_min_ratio + risen * (1.0 - params.warmup_min_ratio)
        wave = (1 + math.cos(math.pi * min(1.0, (iteration - steps + 1) / decay))) / 2
        return max(0.0, params.cos_min_ratio + (1.0 - params.cos_min_ratio) * wave)

    return _started(params.last_batch_iteration, 0.0, base, lambda iteration: base * ratio(iteration))


def _one_cycle(params: OneCycleParams, base: float) -> Curve:
    low, high = _first(params.cycle_min_lr), _first(params.cycle_max_lr)
    first, second = _halves(params)

    def rate(iteration: int) -> float:
        if iteration < first + second:
            return low + (high - low) * _height(params, iteration + 1)
        if math.isclose(params.decay_step_size, 0) or math.isclose(params.decay_lr_rate, 0):
            return low
        return low / (1 + params.decay_lr_rate * (iteration - first - second + 1) / params.decay_step_size)

    return _started(params.last_batch_iteration, low, base, rate)


def _halves(params: OneCycleParams) -> tuple[int, int]:
    first, second = params.cycle_first_step_size, params.cycle_second_step_size
    return first, first if second is None else second


def _height(params: OneCycleParams, batch: int) -> float:
    """Say how high in the cycle a batch is: 0 at its foot, 1 at its top; stairs are flat."""
    first, second = _halves(params)
    place = batch % (first + second)
    rises = place <= first
    height = place / first if rises else (first + second - place) / second
    later = params.cycle_second_stair_count
    stairs = params.cycle_first_stair_count if rises or later is None else later
    if not stairs:
        return height
    position = place * stairs / first if rises else (first + second - place) * stairs / second
    return math.floor(position) / stairs


def _lr_range_test(params: LrRangeTestParams, base: float) -> Curve:
    low = _first(params.lr_range_test_min_lr)

    def rate(iteration: int) -> float:
        interval = (iteration + 1) / params.lr_range_test_step_size
        whole = math.floor(interval) if params.lr_range_test_staircase else interval
        return low * (1 + params.lr_range_test_step_rate * whole)

    return _started(params.last_batch_iteration, low, base, rate)


DEEPSPEED: Mapping[str, Callable[[Any, float], Curve]] = {
    "WarmupLR": _warmup,
    "WarmupDecayLR": _warmup_decay,
    "WarmupCosineLR": _warmup_cosine,
    "OneCycle": _one_cycle,
    "LRRangeTest": _lr_range_test,
}
"""`scheduler.type` → its parameters and the optimizer's own learning rate → the learning rate at a step."""


@dataclass(frozen=True)
class ScheduleInputs:
    """What the Trainer's schedules depend on."""

    peak: float
    """`--learning_rate`."""
    warmup: int
    total: int
    options: Mapping[str, Any]
    """`--lr_scheduler_kwargs`."""

    def option(self, name: str, default: float) -> float:
        """Look up a number in the options."""
        value = self.options.get(name)
        return default if value is None else float(value)

    def progress(self, step: int) -> float:
        """Say how much of what follows the warmup is done."""
        return (step - self.warmup) / max(1, self.total - self.warmup)

    def floor(self) -> float:
        """Say to which share of the peak a schedule falls."""
        low = self.options.get("min_lr")
        return self.option("min_lr_rate", 0.0) if low is None else float(low) / self.peak


def _rising(after: Callable[[ScheduleInputs, int], float]) -> Callable[[ScheduleInputs], Curve]:
    """Rise from 0 to the peak during the warmup, then go on as a share of the peak."""

    def curve(run: ScheduleInputs) -> Curve:
        def rate(step: int) -> float:
            share = step / max(1, run.warmup) if step < run.warmup else after(run, step)
            return run.peak * share

        return rate

    return curve


def _linear(run: ScheduleInputs, step: int) -> float:
    return max(0.0, (run.total - step) / max(1, run.total - run.warmup))


def _wave(run: ScheduleInputs, progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * run.option("num_cycles", 0.5) * 2.0 * progress))


def _cosine(run: ScheduleInputs, step: int) -> float:
    return max(0.0, _wave(run, run.progress(step)))


def _restarts(run: ScheduleInputs, step: int) -> float:
    progress = run.progress(step)
    cycle = (run.option("num_cycles", 1.0) * progress) % 1.0
    return 0.0 if progress >= 1.0 else max(0.0, 0.5 * (1.0 + math.cos(math.pi * cycle)))


def _polynomial(run: ScheduleInputs, step: int) -> float:
    end = run.option("lr_end", 1e-7)
    if step > run.total or run.total == run.warmup:
        return end / run.peak
    remaining = 1 - (step - run.warmup) / (run.total - run.warmup)
    return float((run.peak - end) * remaining ** run.option("power", 1.0) + end) / run.peak


def _inverse_sqrt(run: ScheduleInputs, step: int) -> float:
    timescale = run.option("timescale", run.warmup or 10_000)
    return 1.0 / math.sqrt((step + timescale - run.warmup) / timescale)


def _cosine_to_floor(run: ScheduleInputs, step: int) -> float:
    return max(0.0, _wave(run, run.progress(step)) * (1 - run.floor()) + run.floor())


def _cosine_warmup_to_floor(run: ScheduleInputs) -> Curve:
    start = run.options.get("warmup_lr_rate")

    def rate(step: int) -> float:
        if step >= run.warmup:
            return run.peak * _cosine_to_floor(run, step + 1)
        if start is None:
            return run.peak * (step + 1.0) / max(1.0, run.warmup)
        return run.peak * (float(start) + (1.0 - float(start)) * step / max(1, run.warmup - 1))

    return rate


_FALLS: Mapping[str, Callable[[ScheduleInputs, float], float]] = {
    "linear": lambda _, done: 1.0 - done,
    "cosine": _wave,
    "1-sqrt": lambda _, done: 1.0 - math.sqrt(done),
}
_RISES: Mapping[str, Callable[[float], float]] = {
    "linear": lambda done: done,
    "cosine": lambda done: 0.5 * (1.0 - math.cos(math.pi * done)),
    "1-sqrt": lambda done: 1.0 - math.sqrt(1.0 - done),
}


def _stable(run: ScheduleInputs) -> Curve:
    low, decay = run.option("min_lr_ratio", 0.0), int(run.option("num_decay_steps", 0))
    rise = _RISES[str(run.options.get("warmup_type", "linear"))]
    fall = _FALLS[str(run.options.get("decay_type", "cosine"))]
    stable = int(run.option("num_stable_steps", run.total - run.warmup - decay))

    def share(step: int) -> float:
        falling = step - run.warmup - stable
        if step < run.warmup:
            return max(0.0, rise(step / max(1, run.warmup)) * (1.0 - low) + low)
        if falling < 0:
            return 1.0
        return max(0.0, fall(run, falling / decay) * (1.0 - low) + low) if falling < decay else low

    return lambda step: run.peak * share(step)


TRAINER: Mapping[str, Callable[[ScheduleInputs], Curve]] = {
    "linear": _rising(_linear),
    "cosine": _rising(_cosine),
    "cosine_with_restarts": _rising(_restarts),
    "polynomial": _rising(_polynomial),
    "constant": lambda run: lambda _: run.peak,
    "constant_with_warmup": _rising(lambda run, step: 1.0),
    "inverse_sqrt": _rising(_inverse_sqrt),
    "cosine_with_min_lr": _rising(_cosine_to_floor),
    "cosine_warmup_with_min_lr": _cosine_warmup_to_floor,
    "warmup_stable_decay": _stable,
}
"""`--lr_scheduler_type` → the learning rate at a step."""

UNPREDICTABLE = frozenset({"reduce_lr_on_plateau", "greedy"})
"""Schedules of the Trainer that follow how training goes."""

ENDLESS = frozenset(
    {"WarmupLR", "OneCycle", "LRRangeTest", "constant", "constant_with_warmup", "inverse_sqrt"}
)
"""Schedules whose curve does not depend on how long the run is."""
