"""Rules about 16-bit master weights and optimizer states."""

from collections.abc import Iterator

from zlaunch.config.rules.rule import CPU, Subject, Violation, error, fails_later, zero

_MASTERS = {"enabled": True, "bf16_master_weights_and_grads": True}


def _masters(subject: Subject) -> Iterator[tuple[str, str]]:
    """Find the precisions with 16-bit master weights: the precision and its key."""
    if subject.config.fp16.fp16_master_weights_and_grads:
        yield "fp16", "fp16.fp16_master_weights_and_grads"
    if subject.config.brain_float.bf16_master_weights_and_grads:
        yield "bf16", "bf16.bf16_master_weights_and_grads"


@error(
    {"zero_optimization": {"stage": 0}, "bf16": {**_MASTERS, "bf16_optimizer_states": True}},
    {zero("stage"): 1},
)
def masters_need_partitioning(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed asserts stage 1 or higher for 16-bit master weights."""
    for _, key in _masters(subject):
        if subject.stage == 0:
            yield Violation(
                key, "16-bit master weights need stage 1, 2 or 3", "use stage 1 or higher, or delete it"
            )


@error(
    {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True, "bf16_optimizer_states": True}},
    {"bf16.bf16_master_weights_and_grads": True},
)
def bf16_states_need_masters(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed asserts bf16 master weights for bf16 optimizer states."""
    bf16 = subject.config.brain_float
    if bf16.bf16_optimizer_states and not bf16.bf16_master_weights_and_grads:
        yield Violation(
            "bf16.bf16_optimizer_states",
            "`bf16_optimizer_states` needs `bf16_master_weights_and_grads`",
            'add `"bf16_master_weights_and_grads": true`',
        )


@fails_later({"zero_optimization": {"stage": 2}, "bf16": _MASTERS}, {zero("offload_optimizer"): CPU})
def masters_need_offload(subject: Subject) -> Iterator[Violation]:
    """16-bit master weights need DeepSpeedCPUAdam, unless the optimizer states are in bf16 too."""
    if subject.stage == 0 or "offload_optimizer" in subject.offloads:
        return
    for name, key in _masters(subject):
        if name == "fp16" or not subject.config.brain_float.bf16_optimizer_states:
            hint = 'add `"offload_optimizer": {"device": "cpu"}`'
            if name == "bf16":
                hint += ", or `bf16_optimizer_states`"
            yield Violation(key, "16-bit master weights need optimizer offload", hint)


@fails_later(
    {
        "zero_optimization": {"stage": 2, "offload_optimizer": CPU},
        "bf16": _MASTERS,
        "optimizer": {"type": "Lion", "params": {"lr": 1e-4}},
    },
    {"optimizer.type": "AdamW"},
)
def masters_need_adam(subject: Subject) -> Iterator[Violation]:
    """With optimizer offload, only DeepSpeedCPUAdam supports 16-bit master weights."""
    wrong = subject.optimizer not in (None, "adam", "adamw") or subject.has_torch_adam
    for _, key in _masters(subject):
        if wrong and "offload_optimizer" in subject.offloads:
            yield Violation(key, "16-bit master weights need DeepSpeed's own Adam", 'write `"type": "AdamW"`')


@fails_later(
    {
        "zero_optimization": {"stage": 2, "offload_optimizer": CPU},
        "fp16": {"enabled": False, "fp16_master_weights_and_grads": True},
        "bf16": _MASTERS,
    },
    {"fp16": None},
)
def masters_in_both_formats(subject: Subject) -> Iterator[Violation]:
    """The engine refuses master weights in both fp16 and bf16, even if one of the precisions is off."""
    if len(keys := [key for _, key in _masters(subject)]) > 1:
        yield Violation(keys[0], "master weights cannot be in both fp16 and bf16", f"delete `{keys[0]}`")
