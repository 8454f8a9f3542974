"""Which learning-rate schedule a job follows, and over how many steps: DeepSpeed's, or else the Trainer's."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from zlaunch.config.resolve.lr_curves import DEEPSPEED, ENDLESS, TRAINER, UNPREDICTABLE, Curve, ScheduleInputs
from zlaunch.config.resolve.resolve import ResolvedValues
from zlaunch.config.resolve.values import AUTO, Values
from zlaunch.dsconfig.keys.lookup import field_at
from zlaunch.dsconfig.schema.root import DsConfig
from zlaunch.dsconfig.schema.scheduler import DEEPSPEED_SCHEDULERS
from zlaunch.errors import WrongUsage
from zlaunch.job.script import ConfigInterface
from zlaunch.job.trainer_args import TrainerArgs, flags

ASSUMED_STEPS = 1000
_PARAMS = ("scheduler", "params")
_TOTAL = (*_PARAMS, "total_num_steps")
_LR = ("optimizer", "params", "lr")


@dataclass(frozen=True)
class Schedule:
    """The learning rate of a job, as far as it is known before it starts."""

    name: str
    source: str
    remarks: tuple[str, ...]
    """What is not known, and what was assumed instead."""
    curve: Curve | None
    """The learning rate at a step; None where it cannot be known."""
    num_steps: int = ASSUMED_STEPS
    """Steps to show."""
    is_whole: bool = False
    """Whether these are the steps of the run."""
    is_share: bool = False
    """Whether only shares of the run mean anything."""

    def rate(self, step: int) -> float:
        """Say the learning rate at a step of a schedule that is known."""
        return self.curve(step) if self.curve is not None else math.nan

    def peak(self) -> tuple[int, float]:
        """Find the first step with the highest rate."""
        stride = max(1, self.num_steps // 100_000)
        step = max(range(0, self.num_steps, stride), key=self.rate)
        return step, self.rate(step)


def schedule_of(resolved: ResolvedValues, interface: ConfigInterface, argv: Sequence[str]) -> Schedule:
    """Find out which schedule a job follows."""
    values, args = resolved.values, resolved.agreement.args
    name = values[("scheduler", "type")]
    if isinstance(name, str):
        source = f"`scheduler.type`, {values.leaves[('scheduler', 'type')].source}"
        return _of_deepspeed(name, source, values, args, interface)
    if interface is ConfigInterface.TRAINER:
        return _of_trainer(values, args, argv)
    own = "the script's own, or the rate of the optimizer throughout"
    return Schedule("no schedule", "no `scheduler` in the ds_config", (own,), None)


_ODD = "its settings give no number at every step"


def _tried(make: Callable[[], Curve], num_steps: int) -> Curve | None:
    """Make a curve and try every part of it once; settings can be such that there is none."""
    steps = [num_steps * part // 20 for part in range(20)]
    try:
        curve = make()
        return curve if all(math.isfinite(curve(step)) for step in steps) else None
    except (ArithmeticError, ValueError, TypeError, KeyError):
        return None


def _of_deepspeed(
    name: str, source: str, values: Values, args: TrainerArgs, interface: ConfigInterface
) -> Schedule:
    params = {str(path[-1]): leaf.value for path, leaf in values.leaves.items() if path[:-1] == _PARAMS}
    if reason := _hidden(name, params, interface):
        return Schedule(name, source, (reason,), None)
    warmup = params.get("warmup_num_steps", 1000)
    warmup = float(args["warmup_steps"].value if warmup == AUTO else warmup)
    total = _total(values, args)
    counted = warmup if name.startswith("Warmup") else 0.0
    who = _DATASET if interface is ConfigInterface.TRAINER else "the script decides"
    steps, remarks, is_share = _length(name, total, counted, params, who)
    base = _base_rate(values, args, interface)
    if base is None and (
        name == "WarmupCosineLR" or (name == "WarmupLR" and not params.get("warmup_max_lr"))
    ):
        remarks = (*remarks, "as a multiple of the rate of the script's own optimizer")
    open_numbers = {
        "total_num_steps": steps,
        "warmup_num_steps": max(1, _warmup_steps(warmup, steps)),
        "warmup_max_lr": base,
    }
    numbers = {key: open_numbers.get(key, 0) if value == AUTO else value for key, value in params.items()}
    try:
        read: Any = DsConfig.model_validate({"scheduler": {"type": name, "params": numbers}}).scheduler
    except ValidationError:
        return Schedule(name, source, (_ODD,), None)
    curve = _tried(lambda: DEEPSPEED[name](read.params, 1.0 if base is None else base), steps)
    remarks = remarks if curve is not None else (_ODD,)
    return Schedule(name, source, remarks, curve, steps, total is not None, is_share)


def _hidden(name: str, params: Mapping[str, Any], interface: ConfigInterface) -> str | None:
    """Say who knows a schedule, where that is nobody but the running job."""
    if name not in DEEPSPEED_SCHEDULERS:
        return "`torch.optim.lr_scheduler` computes it while it trains"
    if AUTO in params.values() and interface is not ConfigInterface.TRAINER:
        return "the script's `DummyScheduler` brings its numbers"
    return None


def _of_trainer(values: Values, args: TrainerArgs, argv: Sequence[str]) -> Schedule:
    kind = args["lr_scheduler_type"]
    name = str(kind.value)
    if name in UNPREDICTABLE:
        return Schedule(name, str(kind.source), ("it follows how training goes",), None)
    if name not in TRAINER:
        raise WrongUsage(
            f"the Trainer has no schedule `{name}`",
            f"write one of {', '.join(f'`{one}`' for one in TRAINER)}",
        )
    total, warmup = _total(values, args), float(args["warmup_steps"].value)
    steps, remarks, is_share = _length(name, total, warmup, {}, _DATASET)
    base = _base_rate(values, args, ConfigInterface.TRAINER) or 0.0
    run = ScheduleInputs(base, _warmup_steps(warmup, total or steps), total or steps, _options(argv))
    said = "no warmup" if run.warmup == 0 else f"{run.warmup} steps of warmup"
    if name == "constant":
        said = "warmup is not read"
    elif is_share and warmup:
        said = f"{warmup:.3g} of the run is warmup"
    remarks = (f"{said} ({args['warmup_steps'].source})", *remarks)
    curve = _tried(lambda: TRAINER[name](run), steps)
    remarks = remarks if curve is not None else (_ODD,)
    return Schedule(name, str(kind.source), remarks, curve, steps, total is not None, is_share)


def _options(argv: Sequence[str]) -> Mapping[str, Any]:
    """Read `--lr_scheduler_kwargs`, which is a JSON object."""
    text = dict(flags(argv)).get("lr_scheduler_kwargs")
    if not text:
        return {}
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise WrongUsage(f"`--lr_scheduler_kwargs {text}` is no JSON object", """write `'{"name": value}'`""")
    return options


def _total(values: Values, args: TrainerArgs) -> int | None:
    """Say how long the run is: as the arguments tell, or as the scheduler was told."""
    steps = int(args["max_steps"].value)
    told = values[_TOTAL]
    return steps if steps > 0 else told if isinstance(told, int) and told > 0 else None


def _warmup_steps(warmup: Any, total: int) -> int:
    """Count the steps of a warmup as `TrainingArguments.get_warmup_steps` does."""
    return int(warmup) if float(warmup) >= 1 else math.ceil(total * float(warmup))


_DATASET = "the dataset decides, or `--max_steps`,"


def _length(
    name: str, total: int | None, warmup: float, params: Mapping[str, Any], who: str
) -> tuple[int, tuple[str, ...], bool]:
    """Say how many steps to show, what is to be said about that, and whether only shares mean anything."""
    if total is not None:
        return total, (), False
    unknown = f"{who} how long the run is"
    if name in ENDLESS and (warmup >= 1 or warmup == 0):
        shape = _SHAPES[name](params) if name in _SHAPES else 2 * warmup
        steps = int(shape) or ASSUMED_STEPS
        return steps, (f"{unknown}; these are its first {steps} steps",), False
    if warmup >= 1:
        steps = max(ASSUMED_STEPS, 10 * int(warmup))
        return steps, (f"{unknown}; drawn as if it were {steps} steps",), False
    return ASSUMED_STEPS, (f"{unknown}; so this is over a share of it",), True


def _cycle(params: Mapping[str, Any]) -> float:
    first = int(params.get("cycle_first_step_size", 2000))
    second = params.get("cycle_second_step_size")
    return 1.25 * (first + int(first if second is None else second))


_SHAPES: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "OneCycle": _cycle,
    "LRRangeTest": lambda params: 5.0 * int(params.get("lr_range_test_step_size", 2000)),
}
"""`scheduler.type` → the steps in which it shows its shape."""


def _base_rate(values: Values, args: TrainerArgs, interface: ConfigInterface) -> float | None:
    """Say the learning rate that the optimizer starts with; None where only the script knows."""
    rate = values[_LR]
    if rate is None and values.has(("optimizer",)):
        field = field_at(values.config(), _LR)
        rate = None if field is None else field.default
    if rate is None and interface is ConfigInterface.TRAINER:
        rate = args["learning_rate"].value
    rate = rate[0] if isinstance(rate, list) and rate else rate
    return float(rate) if isinstance(rate, int | float) else None
