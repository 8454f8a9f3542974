"""Find the learning-rate schedule of a job, DeepSpeed's or else the Trainer's, and its number of steps."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from zlaunch.config.resolve.lr_curves import (
    ENDLESS,
    TRAINER,
    UNPREDICTABLE,
    Curve,
    ScheduleInputs,
    deepspeed_curve,
    trainer_curve,
)
from zlaunch.config.resolve.resolve import ResolvedValues
from zlaunch.config.resolve.values import AUTO, Values
from zlaunch.dsconfig.keys.lookup import field_at
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.scheduler import DEEPSPEED_SCHEDULERS
from zlaunch.errors import WrongUsage
from zlaunch.frozen import dataclass
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import ConfigInterface
from zlaunch.job.trainer_args import TrainerArgs

ASSUMED_STEPS = 1000
_PARAMS = ("scheduler", "params")
_TOTAL = (*_PARAMS, "total_num_steps")
_LR = ("optimizer", "params", "lr")


@dataclass(frozen=True)
class Schedule:
    """The learning rate of a job, as far as it is known before it starts."""

    name: str
    source: str
    remarks: tuple[str, ...] = ()
    """What is not known, and what was assumed instead."""
    curve: Curve | None = None
    """The learning rate at a step; None where it cannot be known."""
    num_steps: int = ASSUMED_STEPS
    """Steps to show."""
    is_whole: bool = False
    """Whether these are the steps of the run."""
    is_share: bool = False
    """Whether only shares of the run mean anything."""

    def rate(self, step: int) -> float:
        """Say the learning rate at a step of a schedule that is known."""
        if self.curve is not None:
            return self.curve(step)
        return math.nan

    def peak(self) -> tuple[int, float]:
        """Find the first step with the highest rate."""
        stride = max(1, self.num_steps // 100_000)
        step = max(range(0, self.num_steps, stride), key=self.rate)
        return step, self.rate(step)


@dataclass(frozen=True)
class _ScheduledJob:
    values: Values
    args: TrainerArgs
    interface: ConfigInterface

    @property
    def total(self) -> int | None:
        """The number of steps: as the arguments say, or as the scheduler was told."""
        steps, written = int(self.args["max_steps"].value), self.values[_TOTAL]
        if steps > 0:
            return steps
        if isinstance(written, int) and written > 0:
            return written
        return None

    @property
    def base(self) -> float | None:
        """The initial learning rate of the optimizer; None if only the script sets it."""
        rate = self.values[_LR]
        if rate is None and self.values.has(("optimizer",)):
            rate = getattr(field_at(self.values.config(), _LR), "default", None)
        if rate is None and self.interface is ConfigInterface.TRAINER:
            rate = self.args["learning_rate"].value
        if isinstance(rate, list) and rate:
            rate = rate[0]
        if isinstance(rate, int | float):
            return float(rate)
        return None


def schedule_of(resolved: ResolvedValues, interface: ConfigInterface, typed: ScriptArgs) -> Schedule:
    """Find out which schedule a job follows."""
    job = _ScheduledJob(resolved.values, resolved.agreement.args, interface)
    type_ = job.values.leaves.get(("scheduler", "type"))
    if type_ is not None and isinstance(type_.value, str):
        return _of_deepspeed(Schedule(type_.value, f"`scheduler.type`, {type_.source}"), job)
    if interface is ConfigInterface.TRAINER:
        kind = job.args["lr_scheduler_type"]
        return _of_trainer(Schedule(str(kind.value), str(kind.source)), job, typed)
    remark = "the schedule of the script, or the constant rate of the optimizer"
    return Schedule("no schedule", "no `scheduler` in the ds_config", (remark,))


def _with_curve(schedule: Schedule, make: Callable[[], Curve]) -> Schedule:
    """Make a curve and try it at 20 steps; some settings give no number there."""
    try:
        curve = make()
        is_sound = all(math.isfinite(curve(schedule.num_steps * part // 20)) for part in range(20))
    except (ArithmeticError, ValueError, TypeError, KeyError):
        is_sound = False
    if not is_sound:
        return Schedule(schedule.name, schedule.source, ("its settings give no learning rate at some steps",))
    return replace(schedule, curve=curve)


def _of_deepspeed(named: Schedule, job: _ScheduledJob) -> Schedule:
    name = named.name
    params = {str(path[-1]): leaf.value for path, leaf in job.values.leaves.items() if path[:-1] == _PARAMS}
    if reason := _hidden(name, params, job.interface):
        return replace(named, remarks=(reason,))
    warmup = params.get("warmup_num_steps", 1000)
    warmup = float(job.args.warmup.value if warmup == AUTO else warmup)
    who = _DATASET if job.interface is ConfigInterface.TRAINER else "the script decides"
    schedule = _with_steps(named, job.total, warmup if name.startswith("Warmup") else 0.0, params, who)
    base = job.base
    takes_base = name == "WarmupCosineLR" or (name == "WarmupLR" and not params.get("warmup_max_lr"))
    if base is None and takes_base:
        remark = "as a multiple of the rate of the script's optimizer"
        schedule = replace(schedule, remarks=(*schedule.remarks, remark))
    open_numbers = {
        "total_num_steps": schedule.num_steps,
        "warmup_num_steps": max(1, _warmup_steps(warmup, schedule.num_steps)),
        "warmup_max_lr": base,
    }
    numbers = {key: open_numbers.get(key, 0) if value == AUTO else value for key, value in params.items()}

    def curve() -> Curve:
        read: Any = DsConfig.model_validate({"scheduler": {"type": name, "params": numbers}}).scheduler
        return deepspeed_curve(name, read.params, 1.0 if base is None else base)

    return _with_curve(schedule, curve)


def _hidden(name: str, params: Mapping[str, object], interface: ConfigInterface) -> str | None:
    """Name the source of a schedule that is known only at run time."""
    if name not in DEEPSPEED_SCHEDULERS:
        return "`torch.optim.lr_scheduler` computes it during training"
    if AUTO in params.values() and interface is not ConfigInterface.TRAINER:
        return "the script's `DummyScheduler` sets its numbers"
    return None


def _of_trainer(named: Schedule, job: _ScheduledJob, typed: ScriptArgs) -> Schedule:
    name, given = named.name, job.args.warmup
    warmup = float(given.value)
    if name in UNPREDICTABLE:
        return replace(named, remarks=("it depends on metrics during training",))
    if name not in TRAINER:
        names = ", ".join(f"`{schedule}`" for schedule in TRAINER)
        raise WrongUsage(f"the Trainer has no schedule `{name}`", f"write one of {names}")
    schedule = _with_steps(named, job.total, warmup, {}, _DATASET)
    steps = schedule.num_steps
    run = ScheduleInputs(job.base or 0.0, _warmup_steps(warmup, steps), steps, _schedule_options(typed))
    remark = "no warmup" if run.warmup == 0 else f"{run.warmup} steps of warmup"
    if name == "constant":
        remark = "warmup is ignored"
    elif schedule.is_share and warmup:
        remark = f"{warmup:.3g} of the run is warmup"
    schedule = replace(schedule, remarks=(f"{remark} ({given.source})", *schedule.remarks))
    return _with_curve(schedule, lambda: trainer_curve(name, run))


def _schedule_options(typed: ScriptArgs) -> Mapping[str, object]:
    text = typed.value("lr_scheduler_kwargs")
    if not text:
        return {}
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise WrongUsage(
            f"`--lr_scheduler_kwargs {text}` is not a JSON object", """write `'{"name": value}'`"""
        )
    return options


def _warmup_steps(warmup: float, total: int) -> int:
    """Count the steps of a warmup as `TrainingArguments.get_warmup_steps` does."""
    if warmup >= 1:
        return int(warmup)
    return math.ceil(total * warmup)


_DATASET = "the dataset decides, or `--max_steps`,"


def _with_steps(
    named: Schedule, total: int | None, warmup: float, params: Mapping[str, Any], who: str
) -> Schedule:
    """Decide how many steps to show, and what to say about that."""
    name, unknown = named.name, f"{who} how long the run is"
    if total is not None:
        return replace(named, num_steps=total, is_whole=True)
    if name in ENDLESS and (warmup >= 1 or warmup == 0):
        shape = _SHAPES[name](params) if name in _SHAPES else 2 * warmup
        number = int(shape) or ASSUMED_STEPS
        return replace(named, num_steps=number, remarks=(f"{unknown}; showing its first {number} steps",))
    if warmup >= 1:
        number = max(ASSUMED_STEPS, 10 * int(warmup))
        return replace(named, num_steps=number, remarks=(f"{unknown}; shown for {number} steps",))
    return replace(named, is_share=True, remarks=(f"{unknown}; shown as a share of the run",))


def _cycle(params: Mapping[str, Any]) -> float:
    first = int(params.get("cycle_first_step_size", 2000))
    second = params.get("cycle_second_step_size")
    return 1.25 * (first + int(first if second is None else second))


_SHAPES: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "OneCycle": _cycle,
    "LRRangeTest": lambda params: 5.0 * int(params.get("lr_range_test_step_size", 2000)),
}
"""`scheduler.type` → the number of steps that shows its shape."""
