"""Rules about "auto": who fills it in, and what DeepSpeed makes of it where nobody does."""

from collections.abc import Iterator

from zlaunch.config.rules.rule import Context, Keys, RuleCase, Subject, Violation, rule, zero
from zlaunch.dsconfig.keys.autos import FILLED, OWN_WORDS, Fate
from zlaunch.errors import Severity
from zlaunch.job.script import ConfigInterface

_RAW = Context(interface=ConfigInterface.DEEPSPEED)
_OTHERS = (zero("stage"), zero("offload_optimizer", "device"), zero("offload_param", "device"))
"""Keys that have a rule of their own."""


def _left(subject: Subject, fate: Fate) -> Iterator[tuple[Keys, str]]:
    """Find the words that a script without the Trainer and accelerate leaves to DeepSpeed."""
    if subject.context.interface is ConfigInterface.DEEPSPEED:
        for keys in subject.autos:
            if FILLED.get(keys) == fate and ".".join(keys) not in _OTHERS:
                yield keys, ".".join(keys)


@rule(
    "auto-is-no-number",
    Severity.ERROR,
    RuleCase({"train_batch_size": "auto"}, {"train_batch_size": 8}, _RAW),
)
def auto_is_no_number(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed compares batch sizes with numbers, and ends in a TypeError."""
    for keys, key in _left(subject, "refused"):
        yield Violation(
            key,
            f'nobody fills in "auto" without the Trainer; DeepSpeed wants `{keys[-1]}` as a number',
            "write a number",
        )


@rule(
    "auto-ends-in-a-type-error",
    Severity.LATE,
    RuleCase({"gradient_clipping": "auto"}, {"gradient_clipping": 1.0}, _RAW),
)
def auto_ends_in_a_type_error(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed hands the word on, and the optimizer, the schedule or the first step ends in a TypeError."""
    for keys, key in _left(subject, "crash"):
        when = "at the first step" if len(keys) == 1 else f"when the {keys[0]} is made"
        yield Violation(
            key, f'nobody fills in "auto" without the Trainer: a TypeError {when}', "write a number"
        )


@rule(
    "auto-becomes-the-default",
    Severity.SILENT,
    RuleCase({"bf16": {"enabled": "auto"}}, {"bf16.enabled": True}, _RAW),
)
def auto_becomes_the_default(subject: Subject) -> Iterator[Violation]:
    """In its closed sections DeepSpeed drops an "auto" that is left, and takes the default."""
    for keys, key in _left(subject, "default"):
        yield Violation(key, f'without the Trainer "auto" is false for `{keys[-1]}`', "write true or false")


@rule(
    "auto-bucket",
    Severity.ADVICE,
    RuleCase(
        {"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}},
        {zero("reduce_bucket_size"): 500_000_000},
        _RAW,
    ),
)
def auto_bucket(subject: Subject) -> Iterator[Violation]:
    """Without the Trainer nobody derives buckets from the model's width; DeepSpeed takes its default."""
    for _, key in _left(subject, "bucket"):
        yield Violation(
            key, 'without the Trainer "auto" is DeepSpeed\'s default', "write a number, or leave it out"
        )


@rule(
    "auto-offload-is-none",
    Severity.SILENT,
    RuleCase(
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "auto"}}},
        {zero("offload_optimizer", "device"): "cpu"},
    ),
)
def auto_offload_is_none(subject: Subject) -> Iterator[Violation]:
    """Accelerate and DeepSpeed both take "auto" for "none", and nothing is offloaded."""
    sections = {
        "offload_optimizer": subject.zero.offload_optimizer,
        "offload_param": subject.zero.offload_param,
    }
    for name, section in sections.items():
        if section is not None and section.device == "auto":
            yield Violation(zero(name, "device"), '"auto" offloads nothing', 'write "cpu", "nvme" or "none"')


@rule(
    "auto-nobody-fills",
    Severity.LATE,
    RuleCase(
        {
            "zero_optimization": {"stage": 0},
            "optimizer": {"type": "RMSprop", "params": {"lr": 1e-4, "momentum": "auto"}},
        },
        {"optimizer.params.momentum": 0.9},
    ),
)
def auto_nobody_fills(subject: Subject) -> Iterator[Violation]:
    """The Trainer and accelerate do not know the key and stop at the word; without them torch does."""
    for keys in subject.autos:
        if keys not in FILLED:
            yield Violation(".".join(keys), f'nobody fills in "auto" for `{keys[-1]}`', "write a value")


@rule(
    "auto-of-deepspeeds-own",
    Severity.LATE,
    RuleCase(
        {
            "train_micro_batch_size_per_gpu": "auto",
            "zero_optimization": {"stage": 2},
            "data_types": {"keep_in_fp32_modules": "auto"},
        },
        {"data_types": None},
    ),
)
def auto_of_deepspeeds_own(subject: Subject) -> Iterator[Violation]:
    """Accelerate stops at every "auto" it does not know, and so at those that are DeepSpeed's own words."""
    for keys, value in subject.written.items():
        if subject.for_trainer and value == "auto" and keys in OWN_WORDS:
            yield Violation(
                ".".join(keys),
                'the Trainer stops at this "auto", which is DeepSpeed\'s own',
                "delete the key",
            )
