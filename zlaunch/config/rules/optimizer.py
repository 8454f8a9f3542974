"""Rules about which optimizer works where (`deepspeed/runtime/engine.py`, `_configure_optimizer`)."""

from collections.abc import Iterator, Mapping

from zlaunch.config.rules.rule import CPU, Context, Subject, Violation, fails_later, ignored, number, zero
from zlaunch.dsconfig.native_ops import NOT_ON_CPU, needed_ops
from zlaunch.dsconfig.schema.optimizer import MuonOptimizer
from zlaunch.errors import Severity
from zlaunch.job.script import ConfigInterface

_LR = {"lr": 1e-4}
_LAMB = {"type": "Lamb", "params": _LR}
_MUON = {"type": "Muon", "params": _LR}

TESTED = ("adam", "adamw", "adagrad", "lion", "muon")
"""Optimizers that ZeRO was tested with (`deepspeed/runtime/zero/utils.py`), by their names in a config."""


@ignored(
    {"optimizer": {"type": "Adam", "params": {**_LR, "weight_decay": 0.01}}}, {"optimizer.type": "AdamW"}
)
def adam_means_adamw(subject: Subject) -> Iterator[Violation]:
    """Type Adam uses decoupled weight decay, like AdamW, unless `adam_w_mode` is false."""
    decay = number(subject.param("weight_decay"), subject.argument("weight_decay"))
    if subject.optimizer == "adam" and decay and not subject.has("optimizer.params.adam_w_mode"):
        yield Violation(
            "optimizer.type",
            f"`Adam` means AdamW here: its weight decay of {decay:g} is decoupled",
            'write `"type": "AdamW"`, or `"adam_w_mode": false` for Adam',
        )


@ignored(
    {"optimizer": {"type": "AdamW", "params": {**_LR, "adam_w_mode": False}}},
    {"optimizer.params.adam_w_mode": None},
)
def adamw_stays_adamw(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed ignores `adam_w_mode` for type AdamW."""
    if subject.optimizer == "adamw" and subject.param("adam_w_mode") is False:
        yield Violation(
            "optimizer.params.adam_w_mode",
            "type AdamW ignores `adam_w_mode`",
            'write `"type": "Adam"`, or delete it',
        )


@fails_later(
    {"zero_optimization": {"stage": 2}, "optimizer": {"type": "SGD", "params": _LR}},
    {"zero_allow_untested_optimizer": True},
)
def untested_optimizer(subject: Subject) -> Iterator[Violation]:
    """ZeRO refuses optimizers that it was not tested with, unless `zero_allow_untested_optimizer` is set.

    The Trainer sets it for its own optimizers, but not for one in the config.
    """
    config = subject.config
    if config.optimizer is None or subject.optimizer in TESTED or config.zero_allow_untested_optimizer:
        return
    if subject.stage:
        yield Violation(
            "optimizer.type",
            f"ZeRO refuses {config.optimizer.type}, with which it was not tested",
            'add `"zero_allow_untested_optimizer": true`, or use AdamW',
        )


@fails_later({"optimizer": _LAMB, "fp16": {"enabled": True, "loss_scale": 128}}, {"fp16.loss_scale": 0})
def lamb_scales_dynamically(subject: Subject) -> Iterator[Violation]:
    """Lamb asserts dynamic loss scaling, even if fp16 is off."""
    scale = subject.config.fp16.loss_scale
    if subject.optimizer == "lamb" and scale:
        yield Violation("fp16.loss_scale", f"Lamb needs a dynamic loss scale, not {scale:g}", "write 0")


@fails_later(
    {
        "zero_optimization": {"stage": 2, "offload_optimizer": CPU},
        "optimizer": _LAMB,
        "zero_allow_untested_optimizer": True,
    },
    {"optimizer.type": "AdamW"},
)
def lamb_on_the_host(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed's Lamb is a CUDA kernel and fails on offloaded parameters."""
    if subject.optimizer == "lamb" and "offload_optimizer" in subject.offloads:
        yield Violation(
            "optimizer.type", "Lamb only runs on the GPU", "use AdamW, or do not offload the optimizer"
        )


@fails_later(
    {"zero_optimization": {"stage": 2}, "optimizer": {"type": "Lion", "params": _LR}},
    {"optimizer.type": "AdamW", "optimizer.params.torch_adam": True},
    Context(accelerator="cpu"),
)
def optimizer_needs_a_gpu(subject: Subject) -> Iterator[Violation]:
    """DeepSpeed's CPU accelerator has no FusedLion and no FusedLamb; its CPULion needs offload."""
    config, is_offloaded = subject.config, "offload_optimizer" in subject.offloads
    if subject.context.accelerator != "cpu" or is_offloaded or config.optimizer is None:
        return
    if any(op.name in NOT_ON_CPU for op in needed_ops(config, "cpu", "")):
        hint = 'write `"type": "AdamW"`'
        if subject.optimizer == "lion" and subject.stage:
            hint += ", or `--offload cpu`"
        yield Violation(
            "optimizer.type",
            f"DeepSpeed's {config.optimizer.type} only runs on a GPU, and there is none",
            hint,
        )


@fails_later(
    {
        "zero_optimization": {"stage": 3, "offload_optimizer": {**CPU, "ratio": 0.5}},
        "optimizer": {"type": "Lion", "params": _LR},
    },
    {"optimizer.type": "AdamW"},
)
def part_offload_needs_adam(subject: Subject) -> Iterator[Violation]:
    """With a `ratio` below 1 the engine asserts DeepSpeedCPUAdam for the offloaded part."""
    section = subject.zero.offload_optimizer
    other = subject.optimizer not in (None, "adam", "adamw") or subject.has_torch_adam
    if subject.stage == 3 and section is not None and section.ratio < 1 and other and subject.offloads:
        yield Violation(
            zero("offload_optimizer", "ratio"),
            "a `ratio` below 1 only works with DeepSpeed's own Adam",
            'write `"type": "AdamW"`, or delete the ratio',
        )


@fails_later({"zero_optimization": {"stage": 3}, "optimizer": _MUON}, {zero("reduce_scatter"): False})
def muon_reduces_otherwise(subject: Subject) -> Iterator[Violation]:
    """At stage 3 Muon refuses quantized gradients and `reduce_scatter`, which is on by default."""
    if subject.optimizer != "muon" or subject.stage != 3:
        return
    if subject.zero.zero_quantized_gradients:
        yield Violation(
            zero("zero_quantized_gradients"), "Muon does not work with quantized gradients", "delete it"
        )
    elif subject.zero.reduce_scatter:
        yield Violation(
            subject.nearest(zero("reduce_scatter")),
            "Muon does not work with `reduce_scatter` at stage 3, and it is on by default",
            'write `"reduce_scatter": false`',
        )


_OWN_RATE: Mapping[str, float] = {"adagrad": 0.01}
SETS_THE_RATE = ("WarmupLR", "WarmupDecayLR", "OneCycle", "LRRangeTest")
"""Schedules that set their own learning rate."""


def _schedule_sets_it(subject: Subject) -> bool:
    scheduler = subject.config.scheduler
    if scheduler is None or scheduler.type not in SETS_THE_RATE:
        return False
    return scheduler.type != "WarmupLR" or subject.has("scheduler.params.warmup_max_lr")


@ignored({"optimizer": {"type": "AdamW"}}, {"optimizer.params": _LR}, Context())
def no_learning_rate(subject: Subject) -> Iterator[Violation]:
    """Without `lr` the optimizer uses its constructor's default, not the Trainer's learning rate.

    For a script with an engine of its own, nothing is ignored: there is no other.
    """
    if subject.config.optimizer is None or subject.param("lr") is not None or _schedule_sets_it(subject):
        return
    optimizer = subject.config.optimizer
    if isinstance(optimizer, MuonOptimizer) and None not in (
        optimizer.params.muon_lr,
        optimizer.params.adam_lr,
    ):
        return
    default = "its own default"
    if optimizer.type.lower() in _KNOWN:
        default = f"{_OWN_RATE.get(optimizer.type.lower(), 0.001):g}"
    if subject.context.interface is ConfigInterface.DEEPSPEED:
        message = f"the learning rate of {optimizer.type} is {default}"
        yield Violation("optimizer", message, 'add `"params": {"lr": …}`', severity=Severity.WARNING)
        return
    yield Violation(
        "optimizer",
        f"the learning rate of {optimizer.type} is {default}, whatever the script sets",
        'add `"params": {"lr": "auto"}`; without the Trainer, write a number',
    )


_KNOWN = ("adam", "adamw", "adagrad", "lamb", "lion", "sgd")
