"""`scheduler`: the learning-rate schedules DeepSpeed builds itself, and torch's by name."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag

from zlaunch.dsconfig.schema.section import Count, MaybeAuto, Positive, Rates, Section

TorchSchedulerName = Literal[
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts",
    "CyclicLR", "ExponentialLR", "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR",
    "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau", "SequentialLR", "StepLR",
]  # fmt: skip
"""Classes of `torch.optim.lr_scheduler`."""

DEEPSPEED_SCHEDULERS = ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")


class _Warmup(Section):
    warmup_num_steps: MaybeAuto[Positive] = 1000
    """Steps until the full learning rate; a whole number, at least 1."""

    warmup_type: Literal["log", "linear"] = "log"
    """How the learning rate rises."""

    last_batch_iteration: int = -1
    """Where to go on from."""


class _WarmupFrom(_Warmup):
    warmup_min_lr: MaybeAuto[Rates] = 0.0
    """Learning rate at the start."""


class WarmupParams(_WarmupFrom):
    """Rise, then stay."""

    warmup_max_lr: MaybeAuto[Rates] | None = None
    """Learning rate after the warmup; the optimizer's own if absent."""


class WarmupDecayParams(_WarmupFrom):
    """Rise, then fall to zero."""

    total_num_steps: MaybeAuto[Positive]
    """Steps of the whole run."""

    warmup_max_lr: MaybeAuto[Rates] = 0.001
    """Learning rate after the warmup."""


class WarmupCosineParams(_Warmup):
    """Rise, then fall along a cosine."""

    total_num_steps: MaybeAuto[Positive]
    """Steps of the whole run."""

    warmup_min_ratio: float = 0.0
    """Learning rate at the start, as a share of the optimizer's."""

    cos_min_ratio: float = 0.0001
    """Learning rate at the end, as a share of the optimizer's."""


class OneCycleParams(Section):
    """Up, down, and away."""

    cycle_min_lr: Rates
    """Lowest learning rate of the cycle."""

    cycle_max_lr: Rates
    """Highest learning rate of the cycle."""

    decay_lr_rate: float = 0.0
    """Decay after the cycle."""

    cycle_first_step_size: Positive = 2000
    """Steps of the rise."""

    cycle_second_step_size: Positive | None = None
    """Steps of the fall; as many as the rise if absent."""

    cycle_first_stair_count: Count = 0
    """Stairs in the rise; 0 for a smooth one."""

    cycle_second_stair_count: Count | None = None
    """Stairs in the fall; as many as the rise if absent."""

    decay_step_size: Count = 0
    """Steps between decays after the cycle."""

    cycle_momentum: bool = True
    """Move the momentum against the learning rate."""

    cycle_min_mom: float = 0.8
    """Lowest momentum."""

    cycle_max_mom: float = 0.9
    """Highest momentum."""

    decay_mom_rate: float = 0.0
    """Decay of the momentum after the cycle."""

    last_batch_iteration: int = -1
    """Where to go on from."""


class LrRangeTestParams(Section):
    """Raise the learning rate step by step, to find where training breaks."""

    lr_range_test_min_lr: Rates = 1e-3
    """First learning rate."""

    lr_range_test_step_size: Positive = 2000
    """Steps between raises."""

    lr_range_test_step_rate: float = 1.0
    """How steep the rise is."""

    lr_range_test_staircase: bool = False
    """Raise in stairs rather than at every step."""

    last_batch_iteration: int = -1
    """Where to go on from."""


class WarmupLR(Section):
    """`WarmupLR`."""

    type: Literal["WarmupLR"]
    """Name of the schedule."""

    params: WarmupParams
    """Settings of the schedule."""


class WarmupDecayLR(Section):
    """`WarmupDecayLR`."""

    type: Literal["WarmupDecayLR"]
    """Name of the schedule."""

    params: WarmupDecayParams
    """Settings of the schedule."""


class WarmupCosineLR(Section):
    """`WarmupCosineLR`."""

    type: Literal["WarmupCosineLR"]
    """Name of the schedule."""

    params: WarmupCosineParams
    """Settings of the schedule."""


class OneCycle(Section):
    """`OneCycle`."""

    type: Literal["OneCycle"]
    """Name of the schedule."""

    params: OneCycleParams
    """Settings of the schedule."""


class LRRangeTest(Section):
    """`LRRangeTest`."""

    type: Literal["LRRangeTest"]
    """Name of the schedule."""

    params: LrRangeTestParams
    """Settings of the schedule."""


class TorchScheduler(Section):
    """Any class of `torch.optim.lr_scheduler`."""

    type: TorchSchedulerName
    """Name of the schedule."""

    params: dict[str, Any]
    """Settings of the schedule."""


def _kind(value: Any) -> str:
    name = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return f"<{name}>" if name in DEEPSPEED_SCHEDULERS else "<torch>"


Scheduler = Annotated[
    Annotated[WarmupLR, Tag("<WarmupLR>")]
    | Annotated[WarmupDecayLR, Tag("<WarmupDecayLR>")]
    | Annotated[WarmupCosineLR, Tag("<WarmupCosineLR>")]
    | Annotated[OneCycle, Tag("<OneCycle>")]
    | Annotated[LRRangeTest, Tag("<LRRangeTest>")]
    | Annotated[TorchScheduler, Tag("<torch>")],
    Discriminator(_kind),
]
