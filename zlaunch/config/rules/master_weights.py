"""Rules about master weights and optimizer states in 16 bits."""

from collections.abc import Iterator

from zlaunch.config.rules.rule import CPU, RuleCase, Subject, Violation, rule, zero
from zlaunch.errors import Severity

_MASTERS = {"enabled": True, "bf16_master_weights_and_grads": True}


def _masters(subject: Subject) -> Iterator[tuple[str, str]]:
    """Find the formats whose master weights are to have 16 bits as well: the format, and the key."""
    bf16 = subject.config.brain_float
    if subject.config.fp16.fp16_master_weights_and_grads:
        yield "fp16", "fp16.fp16_master_weights_and_grads"
    if bf16 is not None and bf16.bf16_master_weights_and_grads:
        yield "bf16", "bf16.bf16_master_weights_and_grads"


def _states_in_bf16(subject: Subject) -> bool:
    bf16 = subject.config.brain_float
    return bf16 is not None and bf16.bf16_optimizer_states


@rule(
    "masters-need-partitioning",
    Severity.ERROR,
    RuleCase(
        {"zero_optimization": {"stage": 0}, "bf16": {**_MASTERS, "bf16_optimizer_states": True}},
        {zero("stage"): 1},
    ),
)
def masters_need_partitioning(subject: Subject) -> Iterator[Violation]:
    """Only ZeRO's optimizers can keep master weights in 16 bits. DeepSpeed asserts it."""
    for _, key in _masters(subject):
        if subject.stage == 0:
            yield Violation(
                key, "master weights in 16 bits need stage 1, 2 or 3", "use stage 1 or more, or delete it"
            )


@rule(
    "bf16-states-need-masters",
    Severity.ERROR,
    RuleCase(
        {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True, "bf16_optimizer_states": True}},
        {"bf16.bf16_master_weights_and_grads": True},
    ),
)
def bf16_states_need_masters(subject: Subject) -> Iterator[Violation]:
    """Optimizer states in bf16 go with master weights in bf16. DeepSpeed asserts it."""
    bf16 = subject.config.brain_float
    if bf16 is not None and bf16.bf16_optimizer_states and not bf16.bf16_master_weights_and_grads:
        yield Violation(
            "bf16.bf16_optimizer_states",
            "`bf16_optimizer_states` needs `bf16_master_weights_and_grads`",
            'add `"bf16_master_weights_and_grads": true`',
        )


@rule(
    "masters-need-offload",
    Severity.LATE,
    RuleCase({"zero_optimization": {"stage": 2}, "bf16": _MASTERS}, {zero("offload_optimizer"): CPU}),
)
def masters_need_offload(subject: Subject) -> Iterator[Violation]:
    """Master weights in 16 bits are DeepSpeedCPUAdam's, unless the states are in bf16 as well."""
    if subject.stage == 0 or "offload_optimizer" in subject.offloads:
        return
    for name, key in _masters(subject):
        if name == "fp16" or not _states_in_bf16(subject):
            states = ", or `bf16_optimizer_states`" if name == "bf16" else ""
            yield Violation(
                key,
                "master weights in 16 bits need the optimizer on the host",
                f'add `"offload_optimizer": {{"device": "cpu"}}`{states}',
            )


@rule(
    "masters-need-adam",
    Severity.LATE,
    RuleCase(
        {
            "zero_optimization": {"stage": 2, "offload_optimizer": CPU},
            "bf16": _MASTERS,
            "optimizer": {"type": "Lion", "params": {"lr": 1e-4}},
        },
        {"optimizer.type": "AdamW"},
    ),
)
def masters_need_adam(subject: Subject) -> Iterator[Violation]:
    """On the host only DeepSpeedCPUAdam can keep master weights in 16 bits."""
    wrong = subject.optimizer not in (None, "adam", "adamw") or subject.has_torch_adam
    for _, key in _masters(subject):
        if wrong and "offload_optimizer" in subject.offloads:
            yield Violation(
                key, "master weights in 16 bits need DeepSpeed's own Adam", 'write `"type": "AdamW"`'
            )


@rule(
    "masters-in-both-formats",
    Severity.LATE,
    RuleCase(
        {
            "zero_optimization": {"stage": 2, "offload_optimizer": CPU},
            "fp16": {"enabled": False, "fp16_master_weights_and_grads": True},
            "bf16": _MASTERS,
        },
        {"fp16": None},
    ),
)
def masters_in_both_formats(subject: Subject) -> Iterator[Violation]:
    """Master weights are in fp16 or in bf16, even if one format is off."""
    if len(keys := [key for _, key in _masters(subject)]) > 1:
        yield Violation(keys[0], "master weights cannot be in fp16 and in bf16", f"delete `{keys[0]}`")
