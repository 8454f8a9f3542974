"""Strategies: ZeRO stages with offload, in the order of preference."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from zlaunch.estimate.changes import Options
from zlaunch.estimate.estimator import Estimator
from zlaunch.estimate.fit import Fit
from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected, is_fit, refuse_if_none_works
from zlaunch.frozen import dataclass
from zlaunch.job.spec import JobSpec, Offload, Stage

ANY_NVME: Final = Path("/local_nvme")
"""For an estimate of memory alone; nothing is written there."""

SAME_SPEED: Final = 1.05
"""Two step times within this factor count as equal: a roofline cannot tell them apart."""

SHORTEST: Final = 0.01
"""Steps of fewer seconds count as equal: launching kernels takes longer."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A ZeRO stage and an offload."""

    stage: Stage
    offload: Offload
    label: str
    """What is offloaded, in a table."""

    @property
    def on_nvme(self) -> bool:
        """Whether it needs a drive."""
        return "nvme" in (self.offload.optimizer, self.offload.param)

    @property
    def options(self) -> Options:
        """The options that select it."""
        if self.offload == _NONE:
            return Options(stage=self.stage)
        return Options(stage=self.stage, offload=self.offload)


_NONE: Final = Offload("none", "none")

STRATEGIES: Final = (
    Strategy(0, _NONE, "-"),
    Strategy(1, _NONE, "-"),
    Strategy(2, _NONE, "-"),
    Strategy(3, _NONE, "-"),
    Strategy(2, Offload("cpu", "none"), "CPU optimizer"),
    Strategy(3, Offload("cpu", "none"), "CPU optimizer"),
    Strategy(3, Offload("cpu", "cpu"), "CPU all"),
    Strategy(3, Offload("nvme", "nvme"), "NVMe all"),
)
"""In the order in which to try them: use ZeRO only if the job needs it, stage 3 only if stage 2 does not
suffice, and offload last."""


@dataclass(frozen=True)
class StrategyTable:
    """A job under each of several strategies, and the fastest of them that fits."""

    rows: tuple[tuple[Strategy, Estimate | Rejected], ...]

    @property
    def estimates(self) -> list[tuple[Strategy, Estimate]]:
        """Those that DeepSpeed accepts."""
        return [(strategy, result) for strategy, result in self.rows if isinstance(result, Estimate)]

    @property
    def chosen(self) -> tuple[Strategy, Estimate] | None:
        """The fastest that surely fits; of those equally fast, the first."""
        fitting = [(strategy, estimate) for strategy, estimate in self.estimates if is_fit(estimate)]
        if not fitting:
            return None
        order = fastest_first({number: estimate.seconds for number, (_, estimate) in enumerate(fitting)})
        return fitting[order[0]]

    @property
    def fit(self) -> Fit:
        """Whether the job fits: the best verdict of all strategies."""
        verdicts = {estimate.fit for _, estimate in self.estimates}
        return next(fit for fit in (Fit.YES, Fit.TIGHT, Fit.UNKNOWN, Fit.NO) if fit in verdicts)


def compare_strategies(
    query: EstimateQuery, estimator: Estimator, strategies: Sequence[Strategy] = STRATEGIES
) -> StrategyTable:
    """Rehearse a job under each strategy; raise Refused or Unavailable if none can work."""
    results = estimator.rehearse([apply_strategy(query, strategy) for strategy in strategies])
    refuse_if_none_works(results)
    return StrategyTable(tuple(zip(strategies, results, strict=True)))


def available(job: JobSpec) -> tuple[Strategy, ...]:
    """List the strategies a job can be started with: without `--nvme`, none on NVMe."""
    if job.nvme_dir is not None:
        return STRATEGIES
    return tuple(strategy for strategy in STRATEGIES if not strategy.on_nvme)


def apply_strategy(query: EstimateQuery, strategy: Strategy) -> EstimateQuery:
    """Change the stage and the offload of an estimated job."""
    return replace(query, job=job_with(query.job, strategy, has_base=query.given.base is not None))


def job_with(job: JobSpec, strategy: Strategy, *, has_base: bool) -> JobSpec:
    """Change the stage and the offload of a job, which may have a ds_config that offloads something."""
    offload: Offload | None = strategy.offload
    if offload == _NONE and not has_base:
        offload = None
    nvme_dir = None
    if strategy.on_nvme:
        nvme_dir = job.nvme_dir or ANY_NVME
    return replace(job, stage=strategy.stage, offload=offload, nvme_dir=nvme_dir)


def is_as_fast(seconds: float, fastest: float) -> bool:
    """Whether a step is as fast as the fastest, as far as can be told."""
    return seconds <= max(fastest * SAME_SPEED, SHORTEST)


def fastest_first(seconds: Mapping[int, float | None]) -> list[int]:
    """Order jobs, numbered by preference, by their speed; those equally or unknown fast, by preference."""
    left, ordered = {number: seconds[number] or 0.0 for number in sorted(seconds)}, []
    while left:
        fastest = min(left.values())
        ordered.append(next(number for number, time in left.items() if is_as_fast(time, fastest)))
        del left[ordered[-1]]
    return ordered
