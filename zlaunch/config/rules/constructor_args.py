"""Rules about `optimizer.params`: one name stands for several classes with different arguments."""

from collections.abc import Iterator, Mapping

from zlaunch.config.rules.rule import CPU, Subject, Violation, fails_later, ignored, zero

_BASE = frozenset({"lr", "weight_decay"})
_ADAM = _BASE | {"betas", "eps", "amsgrad", "adam_w_mode", "torch_adam", "fp32_optimizer_states"}
_TORCH = frozenset({"maximize", "foreach", "differentiable", "fused"})

TAKES: Mapping[str, frozenset[str]] = {
    "FusedAdam": _ADAM | {"bias_correction", "set_grad_none"},
    "DeepSpeedCPUAdam": _ADAM | {"bias_correction"},
    "torch.optim.AdamW": _ADAM | _TORCH | {"capturable"},
    "FusedLion": _BASE | {"betas", "set_grad_none"},
    "DeepSpeedCPULion": _BASE | {"betas", "fp32_optimizer_states"},
    "torch.optim.Adagrad": _BASE | _TORCH | {"eps", "lr_decay", "initial_accumulator_value"},
    "DeepSpeedCPUAdagrad": _BASE | {"eps", "amsgrad", "fp32_optimizer_states"},
}
"""Class → the keys of `params` that reach it, or that the engine takes out before."""

_CLASSES = {
    "adam": ("FusedAdam", "DeepSpeedCPUAdam"),
    "adamw": ("FusedAdam", "DeepSpeedCPUAdam"),
    "lion": ("FusedLion", "DeepSpeedCPULion"),
    "adagrad": ("torch.optim.Adagrad", "DeepSpeedCPUAdagrad"),
}
"""Name → its class on the GPU, and its class on the host."""


def class_of(subject: Subject) -> str | None:
    """Name the class that DeepSpeed creates."""
    name = subject.optimizer
    if name in ("adam", "adamw") and subject.has_torch_adam:
        return "torch.optim.AdamW"
    return _CLASSES[name]["offload_optimizer" in subject.offloads] if name in _CLASSES else None


@fails_later(
    {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "fused": True}}},
    {"optimizer.params.torch_adam": True},
)
def argument_of_another_class(subject: Subject) -> Iterator[Violation]:
    """Adam, Lion and Adagrad use one class on the GPU and another on the CPU, with different arguments."""
    if (chosen := class_of(subject)) is None:
        return
    for keys in subject.written:
        if keys[:2] == ("optimizer", "params") and keys[2] not in TAKES[chosen]:
            torch = subject.optimizer in ("adam", "adamw") and keys[2] in TAKES["torch.optim.AdamW"]
            yield Violation(
                ".".join(keys),
                f"DeepSpeed creates {chosen} here, which has no argument `{keys[2]}`",
                'delete it, or add `"torch_adam": true`' if torch else "delete it",
            )


@fails_later(
    {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "amsgrad": True}}},
    {"optimizer.params.torch_adam": True},
)
def amsgrad_not_there(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed's GPU implementations of Adam and Lamb raise an error for `amsgrad`."""
    refuses = class_of(subject) == "FusedAdam" or subject.optimizer == "lamb"
    if refuses and subject.param("amsgrad") is True:
        hint = "delete it" if subject.optimizer == "lamb" else 'delete it, or add `"torch_adam": true`'
        yield Violation(
            "optimizer.params.amsgrad", "DeepSpeed's GPU optimizers do not support `amsgrad`", hint
        )


@ignored(
    {
        "zero_optimization": {"stage": 2, "offload_optimizer": CPU},
        "optimizer": {"type": "Adagrad", "params": {"lr": 1e-4, "amsgrad": True}},
    },
    {"optimizer.params.amsgrad": None},
)
def amsgrad_not_on_the_host(subject: Subject) -> Iterator[Violation]:
    """DeepSpeedCPUAdagrad accepts `amsgrad` and ignores it."""
    if class_of(subject) == "DeepSpeedCPUAdagrad" and subject.param("amsgrad") is True:
        yield Violation("optimizer.params.amsgrad", "DeepSpeedCPUAdagrad ignores `amsgrad`", "delete it")


@ignored(
    {
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "fp32_optimizer_states": False}},
    },
    {zero("offload_optimizer"): CPU},
)
def momentum_argument_unread(subject: Subject) -> Iterator[Violation]:
    """Only DeepSpeedCPUAdam reads `fp32_optimizer_states`; the engine drops it for other optimizers."""
    reads = class_of(subject) in ("DeepSpeedCPUAdam", None)
    if (
        subject.optimizer in ("adam", "adamw")
        and subject.param("fp32_optimizer_states") is False
        and not reads
    ):
        yield Violation(
            "optimizer.params.fp32_optimizer_states",
            "only a CPU optimizer reads `fp32_optimizer_states`; the states stay in fp32",
            'delete it, or add `"offload_optimizer": {"device": "cpu"}`',
        )
