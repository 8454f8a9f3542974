"""Rules about the learning-rate schedule (`deepspeed/runtime/lr_schedules.py`)."""

from collections.abc import Iterator

from zlaunch.config.rules.rule import Subject, Violation, advice, ignored, number
from zlaunch.dsconfig.schema.scheduler import (
    LRRangeTest,
    OneCycle,
    WarmupCosineLR,
    WarmupDecayLR,
    WarmupLR,
)
from zlaunch.job.trainer_args import rates_differ
from zlaunch.units import plural

_PARAMS = "scheduler.params"
_ADAMW = {"type": "AdamW", "params": {"lr": 1e-4}}
_CYCLE = {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-4}


@ignored(
    {"optimizer": _ADAMW, "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 5000}}},
    {f"{_PARAMS}.warmup_max_lr": 1e-4},
)
def two_learning_rates(subject: Subject) -> Iterator[Violation]:
    """The schedule replaces the optimizer's learning rate by its own; WarmupDecayLR defaults to 0.001."""
    scheduler = subject.config.scheduler
    if not isinstance(scheduler, WarmupLR | WarmupDecayLR):
        return
    if subject.for_trainer and rates_differ(subject.written.get):  # which the Trainer refuses
        return
    highest = number(scheduler.params.warmup_max_lr, subject.argument("learning_rate"))
    rate = number(subject.param("lr"), subject.argument("learning_rate"))
    is_default = not subject.has(f"{_PARAMS}.warmup_max_lr")
    open_but_other = is_default and subject.param("lr") == "auto" and rate is None
    if highest is not None and (open_but_other or rate not in (None, highest)):
        ends, written, hint = f"{highest:g}", "auto", 'write `"warmup_max_lr": "auto"`'
        if is_default:
            ends += ", its default"
        if rate is not None:
            written = f"{rate:g}"
            hint = f'write `"warmup_max_lr": {written}`'
        yield Violation(
            subject.nearest(f"{_PARAMS}.warmup_max_lr"),
            f"the schedule warms up to {ends}, not to the optimizer's `lr` of {written}",
            hint,
        )


@ignored(
    {"optimizer": _ADAMW, "scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 500}}},
    {f"{_PARAMS}.warmup_num_steps": 50},
)
def warmup_outlasts_the_run(subject: Subject) -> Iterator[Violation]:
    """A warmup longer than the run never reaches the full learning rate; the default is 1000 steps."""
    scheduler = subject.config.scheduler
    if not isinstance(scheduler, WarmupLR | WarmupDecayLR | WarmupCosineLR):
        return
    total = subject.argument("max_steps")
    if total is not None and total <= 0:
        total = None
    if not isinstance(scheduler, WarmupLR):
        total = number(scheduler.params.total_num_steps, total)
    warmup = number(scheduler.params.warmup_num_steps)
    if total is not None and warmup is not None and warmup > total:
        yield Violation(
            subject.nearest(f"{_PARAMS}.warmup_num_steps"),
            f"the warmup takes {plural(int(warmup), 'step')}, but the run has {int(total)}",
            f'write `"warmup_num_steps": {max(1, int(total) // 10)}`',
        )


@ignored(
    {
        "optimizer": _ADAMW,
        "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-3, "cycle_max_lr": 1e-4}},
    },
    {f"{_PARAMS}.cycle_min_lr": 1e-5},
)
def cycle_upside_down(subject: Subject) -> Iterator[Violation]:
    """OneCycle does not check its bounds and starts at `cycle_min_lr`."""
    scheduler = subject.config.scheduler
    if not isinstance(scheduler, OneCycle):
        return
    low, high = number(scheduler.params.cycle_min_lr), number(scheduler.params.cycle_max_lr)
    if low is not None and high is not None and low > high:
        yield Violation(
            f"{_PARAMS}.cycle_min_lr",
            f"`cycle_min_lr` {low:g} is larger than `cycle_max_lr` {high:g}",
            "swap the two values",
        )


@ignored(
    {"optimizer": _ADAMW, "scheduler": {"type": "OneCycle", "params": {**_CYCLE, "decay_lr_rate": 0.1}}},
    {f"{_PARAMS}.decay_step_size": 1000},
)
def cycle_never_decays(subject: Subject) -> Iterator[Violation]:
    """OneCycle ignores its decay rates while `decay_step_size` is 0, the default."""
    scheduler = subject.config.scheduler
    if not isinstance(scheduler, OneCycle) or scheduler.params.decay_step_size:
        return
    for key in ("decay_lr_rate", "decay_mom_rate"):
        if getattr(scheduler.params, key):
            yield Violation(
                f"{_PARAMS}.{key}",
                f"`{key}` is ignored while `decay_step_size` is 0",
                "add `decay_step_size`",
            )


@ignored(
    {
        "optimizer": {"type": "SGD", "params": {"lr": 1e-4}},
        "scheduler": {"type": "OneCycle", "params": {**_CYCLE, "cycle_momentum": True}},
    },
    {"optimizer.type": "AdamW"},
)
def cycle_without_momentum(subject: Subject) -> Iterator[Violation]:
    """OneCycle changes the momentum through `betas`; for optimizers without them it only warns."""
    key = f"{_PARAMS}.cycle_momentum"
    without = subject.optimizer in ("sgd", "adagrad", "rmsprop", "adadelta", "asgd", "rprop", "lbfgs")
    asked = (
        isinstance(subject.config.scheduler, OneCycle) and subject.written.get(tuple(key.split("."))) is True
    )
    if without and asked:
        yield Violation(key, f"no effect: `{subject.optimizer}` has no `betas`", "write false, or use AdamW")


@advice({"optimizer": _ADAMW, "scheduler": {"type": "LRRangeTest", "params": {}}}, {"scheduler": None})
def range_test_never_ends(subject: Subject) -> Iterator[Violation]:
    """LRRangeTest raises the learning rate without limit, to find where training diverges."""
    if isinstance(subject.config.scheduler, LRRangeTest):
        yield Violation(
            "scheduler.type",
            "LRRangeTest raises the learning rate until training diverges; it is a test, not a schedule",
            "train with WarmupLR or WarmupCosineLR",
        )
