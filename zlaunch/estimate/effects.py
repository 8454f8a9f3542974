"""Effects of changes: estimate the job after each change, and compare it with the current one."""

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final

from zlaunch.config.resolve.autos import ACCUMULATION, MICRO
from zlaunch.config.resolve.job import ResolvedConfig
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.errors import Refused
from zlaunch.estimate.changes import JobState, Options, memory_changes, speed_changes
from zlaunch.estimate.estimator import Estimator
from zlaunch.estimate.fit import Fit
from zlaunch.estimate.forecast import PHASES, Forecast
from zlaunch.estimate.query import Estimate, EstimateQuery, is_fit
from zlaunch.estimate.strategies import Strategy, apply_strategy
from zlaunch.frozen import dataclass
from zlaunch.units import whole

WORTH_SAYING: Final = 0.01
"""Least share of the GPU's peak, or of the step time, that a change must save to be shown."""
MOST_FASTER: Final = 3
MOST_CONFIRMED: Final = 4
"""Changes that are rehearsed after the closed form has found them."""
MOST_NAMED: Final = 3
_OF_A_STEP: Final = PHASES[2:6]


def state_of(query: EstimateQuery, resolved: ResolvedConfig) -> JobState:
    """Return the settings of a job that decide which changes it can make."""
    zero, training = resolved.config.zero_optimization, query.training
    bucket = whole(resolved.values[ZERO, "reduce_bucket_size"]) or whole(zero.reduce_bucket_size)
    stage: int = 0
    if isinstance(zero.stage, int):
        stage = zero.stage
    devices = {name.removeprefix("offload_"): section.device for name, section in zero.offloads.items()}
    return JobState(
        stage=stage,
        world_size=query.given.world_size,
        micro_batch=whole(resolved.values[MICRO]) or 1,
        grad_accum=whole(resolved.values[ACCUMULATION]) or 1,
        offload={part: device for part, device in devices.items() if device != "auto"},
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
    """The most that each part takes on the GPU in any phase of a step, after the change."""


def effect(options: Options, before: Estimate, after: Estimate) -> ChangeEffect:
    """Compare a job with the same job after a change."""
    pace = None
    if before.seconds_per_token and after.seconds_per_token:
        pace = after.seconds_per_token / before.seconds_per_token - 1
    return ChangeEffect(
        options,
        after.need.allocated - before.need.allocated,
        after.need.host - before.need.host,
        pace,
        after.fit,
        _most_of_each_part(after.forecast),
    )


def _most_of_each_part(forecast: Forecast) -> dict[str, int]:
    """What is not there at the peak is there in another phase."""
    most = dict(forecast.parts.get("gpu", {}))
    for phase in forecast.phases:
        if phase.name in _OF_A_STEP:
            for part, size in phase.parts.get("gpu", {}).items():
                most[part] = max(size, most.get(part, 0))
    return most


def expect_changes(query: EstimateQuery, estimator: Estimator) -> None:
    """Begin to rehearse what `try_changes` will try, whatever the estimate of the job is."""
    try:
        state = state_of(query, query.resolve())
    except Refused:
        return
    estimator.expect([query.with_options(options) for _, options in memory_changes(state)])


def try_changes(estimate: Estimate, estimator: Estimator) -> list[ChangeEffect]:
    """Try every change; return the effect of each that still works.

    For a job that fits and whose speed is known, also try changes that use more memory and may be faster.
    """
    state = state_of(estimate.query, estimate.resolved)
    changes = [options for _, options in memory_changes(state)]
    if estimate.fit is Fit.YES and estimate.seconds is not None:
        changes += [options for _, options in speed_changes(state)]
    results = estimator.rehearse([estimate.query.with_options(options) for options in changes])
    return [
        effect(options, estimate, after)
        for options, after in zip(changes, results, strict=True)
        if isinstance(after, Estimate)
    ]


def worth_saying(effects: Sequence[ChangeEffect], peak: int) -> list[ChangeEffect]:
    """Keep changes that save GPU memory, and the fastest that use more and still fit."""
    saving = [change for change in effects if change.gpu < -WORTH_SAYING * peak]
    fitting_others = [change for change in effects if change not in saving and change.fit is Fit.YES]
    paces = [(change.pace or 0, change) for change in fitting_others]
    faster = [(pace, change) for pace, change in paces if pace < -WORTH_SAYING]
    faster.sort(key=itemgetter(0))
    return [*saving, *(change for _, change in faster[:MOST_FASTER])]


def most_reduced(part: str, size: int, effects: Sequence[ChangeEffect]) -> tuple[Options, int] | None:
    """Find the change that reduces a part the most; None if none saves a tenth of it."""
    saving = [change for change in effects if change.gpu < 0]
    if not saving:
        return None
    best = min(saving, key=lambda change: (change.parts.get(part, 0), str(change.options)))
    left = best.parts.get(part, 0)
    if left >= 0.9 * size:
        return None
    return best.options, left


def fitting(effects: Sequence[ChangeEffect]) -> list[Options]:
    """List the changes after which a job fits, the least intrusive first."""
    return [change.options for change in effects if change.fit is Fit.YES]


def find_remedies(
    query: EstimateQuery, strategies: Sequence[Strategy], estimator: Estimator
) -> list[Options]:
    """Find up to three changes, each of which makes a job fit that otherwise fits with no strategy.

    Each is taken with the first strategy with which it does in closed form, or may; a rehearsal confirms it.
    """
    remedies: dict[Fit, dict[Options, tuple[Options, EstimateQuery]]] = {Fit.YES: {}, Fit.TIGHT: {}}
    for strategy in strategies:
        moved = apply_strategy(query, strategy)
        for options in _alone_and_with_checkpointing(moved):
            changed = moved.with_options(options)
            (result,) = estimator.closed_form([changed])
            if isinstance(result, Estimate) and result.fit in remedies:
                remedies[result.fit].setdefault(options, (strategy.options | options, changed))
    likely = list((remedies[Fit.YES] or remedies[Fit.TIGHT]).values())[:MOST_CONFIRMED]
    if not likely:
        return []
    results = estimator.rehearse([changed for _, changed in likely])
    pairs = zip(likely, results, strict=True)
    return [options for (options, _), result in pairs if is_fit(result)][:MOST_NAMED]


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
