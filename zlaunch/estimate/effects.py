"""Effects of changes: estimate the job after each change, and compare it with the current one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from zlaunch.config.resolve.autos import ACCUMULATION, MICRO
from zlaunch.config.resolve.job import ResolvedConfig
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.errors import Refused
from zlaunch.estimate.changes import JobState, Options, memory_changes, speed_changes
from zlaunch.estimate.estimator import Estimator
from zlaunch.estimate.fit import Fit
from zlaunch.estimate.query import Estimate, EstimateQuery, is_fit
from zlaunch.estimate.strategies import Strategy, apply_strategy
from zlaunch.units import whole

WORTH_SAYING: Final = 0.01
"""Least share of the GPU's peak, or of the step time, that a change must save to be shown."""
MOST_FASTER: Final = 3
MOST_CONFIRMED: Final = 4
"""Changes that are rehearsed after the closed form has found them."""
MOST_NAMED: Final = 3


def state_of(query: EstimateQuery, resolved: ResolvedConfig) -> JobState:
    """Return the settings of a job that decide which changes it can make."""
    zero, training = resolved.config.zero_optimization, query.training
    bucket = whole(resolved.values[ZERO, "reduce_bucket_size"]) or whole(zero.reduce_bucket_size)
    offload = {name.removeprefix("offload_"): one.device for name, one in zero.offloads.items()}
    return JobState(
        stage=zero.stage if isinstance(zero.stage, int) else 0,
        world_size=query.given.world_size,
        micro_batch=whole(resolved.values[MICRO]) or 1,
        grad_accum=whole(resolved.values[ACCUMULATION]) or 1,
        offload={part: device for part, device in offload.items() if device != "auto"},
        activation_checkpointing=training.activation_checkpointing,
        bucket=bucket or 0,
        attention=training.attention,
        precision=resolved.precision,
        seq_len=training.seq_len.value,
        has_adapters=training.lora is not None,
    )


@dataclass(frozen=True, slots=True)
class ChangeEffect:
    """What one change does, in bytes; less is negative."""

    options: Options
    gpu: int
    """Tensors on the GPU of a rank."""
    host: int
    """Memory of a whole host."""
    pace: float | None
    """Time per token, as a fraction of what it was."""
    fit: Fit
    parts: dict[str, int]
    """What fills the GPU after the change."""


def effect(options: Options, before: Estimate, after: Estimate) -> ChangeEffect:
    """Compare a job with the same job after a change."""
    old, new = before.seconds_per_token, after.seconds_per_token
    return ChangeEffect(
        options,
        after.need.allocated - before.need.allocated,
        after.need.host - before.need.host,
        new / old - 1 if old and new else None,
        after.fit,
        dict(after.forecast.parts.get("gpu", {})),
    )


def try_changes(estimate: Estimate, estimator: Estimator) -> list[ChangeEffect]:
    """Try every change; return the effect of each that still works.

    For a job that fits and whose speed is known, also try changes that use more memory and may be faster.
    """
    state = state_of(estimate.query, estimate.resolved)
    tried = [options for _, options in memory_changes(state)]
    if estimate.fit is Fit.YES and estimate.seconds is not None:
        tried += speed_changes(state)
    results = estimator.rehearse([estimate.query.with_options(options) for options in tried])
    return [
        effect(options, estimate, after)
        for options, after in zip(tried, results, strict=True)
        if isinstance(after, Estimate)
    ]


def worth_saying(effects: Sequence[ChangeEffect], peak: int) -> list[ChangeEffect]:
    """Keep changes that save GPU memory, and the fastest that use more and still fit."""
    saving = [one for one in effects if one.gpu < -WORTH_SAYING * peak]
    others = [one for one in effects if one not in saving and one.fit is Fit.YES]
    faster = [one for one in others if one.pace is not None and one.pace < -WORTH_SAYING]
    return [*saving, *sorted(faster, key=lambda one: one.pace or 0)[:MOST_FASTER]]


def most_reduced(part: str, size: int, effects: Sequence[ChangeEffect]) -> tuple[Options, int] | None:
    """Find the change that reduces a part the most; None if none saves a tenth of it."""
    left = [(one.parts.get(part, 0), str(one.options), one.options) for one in effects if one.gpu < 0]
    least = min(left, key=lambda one: one[:2], default=None)
    return (least[2], least[0]) if least is not None and least[0] < 0.9 * size else None


def fitting(effects: Sequence[ChangeEffect]) -> list[Options]:
    """List the changes after which a job fits, the least intrusive first."""
    return [one.options for one in effects if one.fit is Fit.YES]


def find_remedies(
    query: EstimateQuery, strategies: Sequence[Strategy], estimator: Estimator
) -> list[Options]:
    """Find up to three changes, each of which makes a job fit that otherwise fits with no strategy.

    Each is taken with the first strategy with which it does in closed form, or may; a rehearsal confirms it.
    """
    found: dict[Fit, dict[Options, tuple[Options, EstimateQuery]]] = {Fit.YES: {}, Fit.TIGHT: {}}
    for strategy in strategies:
        moved = apply_strategy(query, strategy)
        for options in _alone_and_with_checkpointing(moved):
            changed = moved.with_options(options)
            (result,) = estimator.closed_form([changed])
            if isinstance(result, Estimate) and result.fit in found:
                found[result.fit].setdefault(options, (strategy.options | options, changed))
    tried = list((found[Fit.YES] or found[Fit.TIGHT]).values())[:MOST_CONFIRMED]
    results = estimator.rehearse([changed for _, changed in tried]) if tried else ()
    return [options for (options, _), one in zip(tried, results, strict=True) if is_fit(one)][:MOST_NAMED]


def _alone_and_with_checkpointing(query: EstimateQuery) -> Iterator[Options]:
    try:
        resolved = query.resolve()
    except Refused:
        return
    changes = [options for _, options in memory_changes(state_of(query, resolved))]
    alone = [options for options in changes if not options.moves_strategy]
    yield from alone
    checkpointing = Options(activation_checkpointing=True)
    if checkpointing in alone:
        yield from (checkpointing | options for options in alone if options != checkpointing)
