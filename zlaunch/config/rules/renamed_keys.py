"""Rules about old names of keys that DeepSpeed still reads."""

import json
from collections.abc import Iterator

from zlaunch.config.rules.rule import CPU, Subject, Violation, advice, error, fails_later, ignored, zero
from zlaunch.dsconfig.canonical import OLD_NAMES, OldName
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.errors import Fix, FixKind


def _old_names(subject: Subject) -> Iterator[tuple[str, str, OldName]]:
    """Find the old names used in `zero_optimization`: the old key and the new one."""
    for name in OLD_NAMES:
        old, new = str(name.old[-1]), str(name.new[-1])
        if name.old[0] == ZERO and subject.has(zero(old)):
            yield old, new, name


def _repair(name: OldName, value: object) -> tuple[str, Fix]:
    new = str(name.new[-1])
    if name.section is None:
        return f"write `{new}`", Fix(FixKind.RENAME, new)
    section = name.today(value)
    if section is None:
        return "delete it", Fix(FixKind.DELETE)
    return f'write `"{new}": {json.dumps(section)}`', Fix(FixKind.REPLACE, (new, section))


@advice(
    {"zero_optimization": {"stage": 2, "cpu_offload": True}},
    {zero("cpu_offload"): None, zero("offload_optimizer"): CPU},
)
def old_name(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed still reads the old name, with a deprecation warning; a later release may not."""
    for old, new, name in _old_names(subject):
        if not subject.has(zero(new)):
            hint, fix = _repair(name, getattr(subject.zero, old))
            yield Violation(zero(old), f"`{old}` is the old name of `{new}`", hint, fix)


@error(
    {"zero_optimization": {"stage": 2, "cpu_offload": True, "offload_optimizer": CPU}},
    {zero("cpu_offload"): None},
)
def old_and_new_name(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed refuses a config with both the old and the new name, even with equal values."""
    for old, new, _ in _old_names(subject):
        if subject.has(zero(new)):
            is_on, fix = new in subject.offloads or getattr(subject.zero, new) is True, None
            if bool(getattr(subject.zero, old)) == is_on:
                fix = Fix(FixKind.DELETE)
            yield Violation(
                zero(old),
                f"`{old}` is the old name of `{new}`; DeepSpeed refuses both together",
                f"delete `{old}`",
                fix,
            )


@ignored(
    {"zero_optimization": {"stage": 2, "offload_optimizer": CPU, "cpu_offload_use_pin_memory": True}},
    {zero("cpu_offload_use_pin_memory"): None, zero("offload_optimizer", "pin_memory"): True},
)
def old_pinning(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed accepts the old key for pinned memory with a warning and ignores it."""
    if subject.has(zero("cpu_offload_use_pin_memory")):
        yield Violation(
            zero("cpu_offload_use_pin_memory"),
            "DeepSpeed ignores `cpu_offload_use_pin_memory`",
            "use `pin_memory` in the offload section; it is on by default since DeepSpeed 0.19",
        )


@fails_later(
    {"zero_optimization": {"stage": 2, "cpu_offload": True}, "train_micro_batch_size_per_gpu": "auto"},
    {zero("cpu_offload"): None, zero("offload_optimizer"): CPU},
)
def old_offload_unseen(subject: Subject) -> Iterator[Violation]:
    """The Trainer only knows `offload_optimizer`, so it creates an optimizer that DeepSpeed refuses."""
    if subject.for_trainer and subject.zero.cpu_offload and subject.config.optimizer is None:
        yield Violation(
            zero("cpu_offload"),
            "the Trainer ignores `cpu_offload`, and DeepSpeed then refuses the Trainer's optimizer",
            'write `"offload_optimizer": {"device": "cpu"}`',
        )


@advice({"bfloat16": {"enabled": True}}, {"bfloat16": None})
def bf16_by_its_old_name(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed reads `bfloat16` only if `bf16` is missing; the Trainer never reads it."""
    if subject.config.bfloat16 is not None and subject.config.bf16 is None:
        rename = None
        if not subject.has("bf16"):
            rename = Fix(FixKind.RENAME, "bf16")
        yield Violation("bfloat16", "`bfloat16` is the old name of `bf16`", "write `bf16`", rename)


@ignored({"bf16": {"enabled": False}, "bfloat16": {"enabled": True}}, {"bfloat16": None})
def bf16_under_both_names(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed ignores `bfloat16` if `bf16` is present."""
    old, new = subject.config.bfloat16, subject.config.bf16
    if old is not None and new is not None:
        fix = None
        if old.enabled == new.enabled:
            fix = Fix(FixKind.DELETE)
        yield Violation("bfloat16", "`bfloat16` is ignored because `bf16` is present", "delete it", fix)
