"""`scheduler`: DeepSpeed's own learning-rate schedules, and torch's by name."""

from typing import Annotated, Literal

from pydantic import Discriminator, Tag

from zlaunch.dsconfig.schema.section import Count, MaybeAuto, OnDemand, Positive, Rates, Section

TorchSchedulerName = Literal[
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts",
    "CyclicLR", "ExponentialLR", "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR",
    "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau", "SequentialLR", "StepLR",
]  # fmt: skip
"""Classes of `torch.optim.lr_scheduler`."""

DEEPSPEED_SCHEDULERS = ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")


class _Params(Section):
    last_batch_iteration: int = -1
    """Iteration to continue from."""


class _Warmup(_Params):
    warmup_num_steps: MaybeAuto[Positive] = 1000
    """Steps until the full learning rate; at least 1."""

    warmup_type: Literal["log", "linear"] = "log"
    """Shape of the warmup."""


class _WarmupFrom(_Warmup):
    warmup_min_lr: MaybeAuto[Rates] = 0.0
    """Learning rate at the start."""


class WarmupParams(_WarmupFrom):
    """Warm up, then stay constant."""

    warmup_max_lr: MaybeAuto[Rates] | None = None
    """Learning rate after the warmup; by default the optimizer's."""


class WarmupDecayParams(_WarmupFrom):
    """Warm up, then decay linearly to zero."""

    total_num_steps: MaybeAuto[Positive]
    """Steps of the whole run."""

    warmup_max_lr: MaybeAuto[Rates] = 0.001
    """Learning rate after the warmup."""


class WarmupCosineParams(_Warmup):
    """Warm up, then decay along a cosine."""

    total_num_steps: MaybeAuto[Positive]
    """Steps of the whole run."""

    warmup_min_ratio: float = 0.0
    """Learning rate at the start, as a share of the optimizer's."""

    cos_min_ratio: float = 0.0001
    """Learning rate at the end, as a share of the optimizer's."""


class OneCycleParams(_Params):
    """Raise and lower the learning rate in a cycle, then decay it."""

    cycle_min_lr: Rates
    """Lowest learning rate of the cycle."""

    cycle_max_lr: Rates
    """Highest learning rate of the cycle."""

    decay_lr_rate: float = 0.0
    """Decay after the cycle."""

    cycle_first_step_size: Positive = 2000
    """Steps of the first half."""

    cycle_second_step_size: Positive | None = None
    """Steps of the second half; by default like the first."""

    cycle_first_stair_count: Count = 0
    """Stairs in the first half; 0 for a smooth one."""

    cycle_second_stair_count: Count | None = None
    """Stairs in the second half; by default like the first."""

    decay_step_size: Count = 0
    """Steps between decays after the cycle."""

    cycle_momentum: bool = True
    """Cycle the momentum inversely to the learning rate."""

    cycle_min_mom: float = 0.8
    """Lowest momentum."""

    cycle_max_mom: float = 0.9
    """Highest momentum."""

    decay_mom_rate: float = 0.0
    """Decay of the momentum after the cycle."""


class LrRangeTestParams(_Params):
    """Raise the learning rate step by step, to find where training diverges."""

    lr_range_test_min_lr: Rates = 1e-3
    """First learning rate."""

    lr_range_test_step_size: Positive = 2000
    """Steps between raises."""

    lr_range_test_step_rate: float = 1.0
    """Steepness."""

    lr_range_test_staircase: bool = False
    """Raise in stairs instead of at every step."""


class _Scheduler(Section):
    type: str
    """Name of the schedule."""

    params: object
    """Settings of the schedule."""


class WarmupLR(_Scheduler):
    """`WarmupLR`."""

    type: Literal["WarmupLR"]
    params: WarmupParams


class WarmupDecayLR(_Scheduler):
    """`WarmupDecayLR`."""

    type: Literal["WarmupDecayLR"]
    params: WarmupDecayParams


class WarmupCosineLR(_Scheduler):
    """`WarmupCosineLR`."""

    type: Literal["WarmupCosineLR"]
    params: WarmupCosineParams


class OneCycle(_Scheduler):
    """`OneCycle`."""

    type: Literal["OneCycle"]
    params: OneCycleParams


class LRRangeTest(_Scheduler):
    """`LRRangeTest`."""

    type: Literal["LRRangeTest"]
    params: LrRangeTestParams


class TorchScheduler(_Scheduler):
    """Any class of `torch.optim.lr_scheduler`."""

    type: TorchSchedulerName
    params: dict[str, object]


def _kind(value: object) -> str:
    name = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if name in DEEPSPEED_SCHEDULERS:
        return f"<{name}>"
    return "<torch>"


Scheduler = Annotated[
    Annotated[OnDemand[WarmupLR], Tag("<WarmupLR>")]
    | Annotated[OnDemand[WarmupDecayLR], Tag("<WarmupDecayLR>")]
    | Annotated[OnDemand[WarmupCosineLR], Tag("<WarmupCosineLR>")]
    | Annotated[OnDemand[OneCycle], Tag("<OneCycle>")]
    | Annotated[OnDemand[LRRangeTest], Tag("<LRRangeTest>")]
    | Annotated[OnDemand[TorchScheduler], Tag("<torch>")],
    Discriminator(_kind),
]
