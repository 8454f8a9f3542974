"""Rules about "auto": who fills it in, and what DeepSpeed does with one that is left."""

from collections.abc import Iterator

from zlaunch.config.rules.rule import (
    Context,
    Keys,
    Subject,
    Violation,
    advice,
    error,
    fails_later,
    ignored,
    zero,
)
from zlaunch.dsconfig.keys.auto_keys import DUMMIES, FILLED, Fate, is_own_word
from zlaunch.job.script import ConfigInterface

_RAW = Context(interface=ConfigInterface.DEEPSPEED)
_OTHERS = (zero("stage"), zero("offload_optimizer", "device"), zero("offload_param", "device"))
"""Keys with a rule of their own."""


def _autos_left(subject: Subject, fate: Fate) -> Iterator[tuple[Keys, str]]:
    """Find each "auto" that reaches DeepSpeed because the script uses neither the Trainer nor accelerate."""
    if subject.context.interface is ConfigInterface.DEEPSPEED:
        for keys in subject.autos:
            if FILLED.get(keys) == fate and ".".join(keys) not in _OTHERS:
                yield keys, ".".join(keys)


@error({"train_batch_size": "auto"}, {"train_batch_size": 8}, _RAW)
def auto_is_no_number(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed compares batch sizes with numbers and raises a TypeError for "auto"."""
    for keys, key in _autos_left(subject, "refused"):
        yield Violation(
            key,
            f'without the Trainer nothing fills in "auto": DeepSpeed requires a number for `{keys[-1]}`',
            "write a number",
        )


@fails_later({"gradient_clipping": "auto"}, {"gradient_clipping": 1.0}, _RAW)
def auto_ends_in_a_type_error(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed passes "auto" on; the optimizer, the schedule or the first step raises a TypeError."""
    for keys, key in _autos_left(subject, "crash"):
        when, hint = f"when the {keys[0]} is created", "write a number"
        if len(keys) == 1:
            when = "at the first step"
        if keys[-1] == "betas":
            hint = "write two numbers, such as [0.9, 0.999]"
        yield Violation(key, f'without the Trainer nothing fills in "auto": TypeError {when}', hint)


@ignored({"bf16": {"enabled": "auto"}}, {"bf16.enabled": True}, _RAW)
def auto_becomes_the_default(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed drops an "auto" from sections that it validates strictly, and uses the default."""
    for keys, key in _autos_left(subject, "default"):
        yield Violation(
            key, f'without the Trainer, "auto" means false for `{keys[-1]}`', "write true or false"
        )


@advice(
    {"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}},
    {zero("reduce_bucket_size"): 500_000_000},
    _RAW,
)
def auto_bucket(subject: Subject) -> Iterator[Violation]:
    """Only the Trainer derives bucket sizes from the hidden size; DeepSpeed alone uses its default."""
    for _, key in _autos_left(subject, "bucket"):
        yield Violation(
            key, 'without the Trainer, "auto" means DeepSpeed\'s default', "write a number, or delete the key"
        )


@ignored(
    {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "auto"}}},
    {zero("offload_optimizer", "device"): "cpu"},
)
def auto_offload_is_none(subject: Subject) -> Iterator[Violation]:
    """Accelerate and DeepSpeed both read "auto" as "none", so nothing is offloaded."""
    for key in (zero("offload_optimizer", "device"), zero("offload_param", "device")):
        if subject.value(key) == "auto":
            yield Violation(key, '"auto" offloads nothing', 'write "cpu", "nvme" or "none"')


@fails_later(
    {
        "zero_optimization": {"stage": 0},
        "optimizer": {"type": "RMSprop", "params": {"lr": 1e-4, "momentum": "auto"}},
    },
    {"optimizer.params.momentum": 0.9},
)
def auto_nobody_fills(subject: Subject) -> Iterator[Violation]:
    """The Trainer and accelerate refuse an "auto" they cannot fill in; without them torch fails on it."""
    for keys in subject.autos:
        if keys not in FILLED:
            yield Violation(".".join(keys), f'nothing fills in "auto" for `{keys[-1]}`', "write a value")


@fails_later(
    {
        "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": 2},
        "data_types": {"keep_in_fp32_modules": "auto"},
    },
    {"data_types": None},
)
def auto_of_deepspeeds_own(subject: Subject) -> Iterator[Violation]:
    """Accelerate refuses an "auto" that it cannot fill in, even where DeepSpeed accepts the word."""
    for keys, value in subject.written.items():
        if subject.for_trainer and value == "auto" and is_own_word(keys):
            yield Violation(
                ".".join(keys),
                'DeepSpeed accepts "auto" here, but the Trainer raises an error for it',
                "delete the key",
            )


@advice(
    {
        "zero_optimization": {"stage": 2},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}},
    },
    {"scheduler": None},
    Context(interface=ConfigInterface.ACCELERATE),
)
def auto_of_a_dummy(subject: Subject) -> Iterator[Violation]:
    """Accelerate fills in these only from a DummyOptim or DummyScheduler that the script prepares.

    Without one, or with another optimizer or scheduler beside the section, `prepare` raises a ValueError.
    """
    if subject.context.interface is not ConfigInterface.ACCELERATE:
        return
    for section, dummy in DUMMIES.items():
        if any(keys[0] == section and keys in FILLED for keys in subject.autos):
            yield Violation(
                section,
                f'accelerate fills in its "auto" only if the script prepares a `{dummy}`, '
                "and raises a ValueError otherwise",
                f"prepare `accelerate.utils.{dummy}`, or delete the section",
            )
