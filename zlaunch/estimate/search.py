"""Find the fastest configuration that fits, without a trial run.

A branch and bound: the closed form predicts the memory and speed of each candidate, and rehearsals measure
it. Each rehearsal corrects the predictions for similar candidates. The search ends when no
remaining candidate may fit and be faster than the best rehearsed one; `is_as_fast` defines faster. Before it
reports that nothing fits, it tries the smallest candidate of every strategy.
"""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from zlaunch.config.resolve.autos import ACCUMULATION, MICRO
from zlaunch.config.resolve.compose import compose, to_json
from zlaunch.dsconfig.batch import RankGroups
from zlaunch.errors import Refused, Unavailable, WrongUsage
from zlaunch.estimate.candidates import BUCKETED, ELSEWHERE, PLAN, Candidate, candidates, distance
from zlaunch.estimate.estimator import Estimator
from zlaunch.estimate.fit import Fit
from zlaunch.estimate.forecast import POOLS
from zlaunch.estimate.query import (
    Estimate,
    EstimateQuery,
    Rejected,
    check_countable,
    is_fit,
    refuse_if_none_works,
)
from zlaunch.estimate.strategies import (
    STRATEGIES,
    Strategy,
    apply_strategy,
    available,
    fastest_first,
    is_as_fast,
)
from zlaunch.estimate.uncounted import Effect, Uncounted
from zlaunch.frozen import dataclass
from zlaunch.job.transformer import read_transformer
from zlaunch.units import plural

MOST_PER_RANK: Final = 1 << 20
"""More sequences or micro-batches of one rank are typing mistakes."""

MOST_REHEARSED: Final = 20
"""After this many rehearsals, the best result is good enough."""
MOST_MISSES: Final = 6
"""After this many rehearsals without a fit, rehearse the smallest candidate of each strategy."""

NEAR: Final = 0.02
"""Relative error of a prediction corrected by an equal candidate; it grows with the distance between the two,
up to the error of the closed form alone."""
TRUSTED: Final = 3
"""After this many rehearsals, their error of the closed form is assumed for all candidates."""
LIKELY_CACHE: Final = 1.1
"""Reserved memory over tensors, probably, where it was not rehearsed with another bucket."""
LEAST_CACHE: Final = 1.0
"""The same at least."""


@dataclass(frozen=True)
class SearchResult:
    """The chosen candidate, and what else was considered."""

    candidate: Candidate
    estimate: Estimate
    tried: tuple[tuple[Candidate, Estimate | Rejected], ...]
    """Those rehearsed."""
    hopeless: tuple[Strategy, ...]
    """Strategies not rehearsed because nothing fits by the closed form."""
    other: tuple[Candidate, float] | None
    """The fastest candidate of another strategy that fits, or may, and the seconds of its step."""
    uncounted: tuple[Uncounted, ...] = ()
    """What may make the job take less memory."""

    def misses(self) -> Iterator[tuple[Candidate, Estimate]]:
        """List the candidate of each strategy that is as fast and comes closest to fitting."""
        seconds, seen = _step_seconds(self.estimate), set()
        misses = [
            (candidate, result)
            for candidate, result in self.tried
            if isinstance(result, Estimate) and not is_fit(result)
        ]
        for candidate, miss in sorted(misses, key=lambda pair: pair[1].need.reserved):
            if is_as_fast(_step_seconds(miss), seconds) and candidate.strategy not in seen:
                seen.add(candidate.strategy)
                yield candidate, miss

    def ds_config(self) -> str:
        """Write the chosen ds_config, with "auto" where the Trainer's arguments decide."""
        values = compose(self.candidate.query.job, None)
        values = values.put(MICRO, self.candidate.micro_batch, PLAN)
        values = values.put(ACCUMULATION, self.candidate.accumulation, PLAN)
        return to_json(values.config())


@dataclass(frozen=True)
class NothingFits:
    """No candidate surely fits; every working strategy was tried with its smallest one."""

    smallest: tuple[tuple[Candidate, Estimate], ...]
    refused: tuple[tuple[Strategy, Rejected], ...]
    uncounted: tuple[Uncounted, ...] = ()
    """What may make the job take less memory."""

    @property
    def fit(self) -> Fit:
        """Whether it is close, or cannot be told."""
        verdicts = {estimate.fit for _, estimate in self.smallest}
        if self.uncounted and Fit.TIGHT not in verdicts:
            return Fit.UNKNOWN
        return next(fit for fit in (Fit.TIGHT, Fit.UNKNOWN, Fit.NO) if fit in {*verdicts, Fit.NO})

    @property
    def closest(self) -> tuple[Candidate, Estimate]:
        """The candidate that needs least GPU memory; if some are too close to tell, one of those."""
        close = [pair for pair in self.smallest if pair[1].fit is self.fit]
        return min(close or self.smallest, key=lambda pair: pair[1].need.reserved)


def plan(query: EstimateQuery, global_batch: int | None, estimator: Estimator) -> SearchResult | NothingFits:
    """Find the fastest configuration for a global batch, by default the one of the Trainer's arguments.

    Raise WrongUsage for a batch that the ranks cannot share, and Unavailable if there is no GPU to plan for,
    the closed form does not know the model, or the job takes more memory than can be counted.
    """
    uncounted = query.training.uncounted
    if more := [one for one in uncounted if Effect.MORE in one.effect]:
        hint = "`zlaunch estimate` shows what the job takes at least"
        raise Unavailable(f"cannot tell what fits; {more[0]}", hint)
    query = replace(query, training=replace(query.training, uncounted=()))
    if query.cluster.gpu is None:
        raise Unavailable("no GPU found to plan for", "name the target GPUs: `--on 8xH100-80GB`")
    try:
        return replace(search(query, _per_rank(query, global_batch), estimator), uncounted=uncounted)
    except Unavailable:
        _check_known(query)
        raise


def _per_rank(query: EstimateQuery, global_batch: int | None) -> int:
    args = query.given.args
    if global_batch is None:
        sizes = [args[name].value for name in ("per_device_train_batch_size", "gradient_accumulation_steps")]
        if not all(0 < int(size) <= MOST_PER_RANK for size in sizes):
            micro_batch, accumulation = sizes
            raise WrongUsage(
                f"no rank can train on `--per_device_train_batch_size {micro_batch}` "
                f"with `--gradient_accumulation_steps {accumulation}`",
                "set the sequences of a step: `--global-batch N`",
            )
        return math.prod(map(int, sizes))
    return shared_batch(global_batch, query.groups)


def shared_batch(global_batch: int, groups: RankGroups) -> int:
    """Divide a batch among the ranks that multiply it; raise WrongUsage if that leaves a remainder."""
    ranks = groups.batch
    if global_batch % ranks:
        more = -(-global_batch // ranks) * ranks
        raise WrongUsage(
            f"`--global-batch {global_batch}` cannot be shared among {plural(ranks, 'rank')}",
            f"`--global-batch {more}` can",
        )
    return global_batch // ranks


def _check_known(query: EstimateQuery) -> None:
    """Raise Unavailable, naming what works instead, for a model that the closed form does not know."""
    try:
        read_transformer(query.model.value)
    except Refused:
        check_countable(query, apply_strategy(query, STRATEGIES[0]).resolve())
        name = shlex.quote(query.model.name)
        raise Unavailable(
            "`zlaunch plan` does not support this model: the closed form does not know its type",
            f"`zlaunch estimate {name}` may estimate it at each stage and offload",
        ) from None


def search(query: EstimateQuery, per_rank: int, estimator: Estimator) -> SearchResult | NothingFits:
    """Find the fastest configuration for `per_rank` sequences of a rank in a step.

    Raise Refused if none can work at all.
    """
    listed = candidates(query, per_rank)
    closed = estimator.closed_form([candidate.query for candidate in listed])
    if not any(isinstance(result, Estimate) for result in closed):
        smaller = [apply_strategy(query, strategy) for strategy in available(query.job)]
        refuse_if_none_works(estimator.closed_form(smaller))
    return _Search(listed, closed, estimator).run()


class _Search:
    """The state of a search. Candidates are numbered in the order of preference."""

    def __init__(
        self, listed: Sequence[Candidate], closed: Sequence[Estimate | Rejected], estimator: Estimator
    ) -> None:
        self.listed = listed
        self.in_closed_form = list(zip(listed, closed, strict=True))
        self.closed = {number: result for number, result in enumerate(closed) if isinstance(result, Estimate)}
        self.strategies = list(dict.fromkeys(listed[number].strategy for number in self.closed))
        self.estimator = estimator
        self.known: dict[int, Estimate | Rejected] = {}
        self.complete: set[int] = set()
        """Candidates of which all ranks that differ, and resuming, were rehearsed."""
        self._expectations: dict[int, Estimate] = {}

    def run(self) -> SearchResult | NothingFits:
        """Rehearse until nothing better can be expected."""
        while True:
            best = self._best()
            hopes = self._hopes(best)
            if hopes:
                # What resuming takes is asked of the choice; if nothing fits, of what comes closest.
                self._rehearse(self._round(hopes, best), resumes=best is None)
            elif best is None:
                left = [number for number in self._smallest() if number not in self.known]
                if not left:
                    return self._nothing()
                self._rehearse(left)
            elif best not in self.complete:
                self._rehearse([best])
            else:
                return self._chosen(best)

    def _best(self) -> int | None:
        return next(iter(_fitting(self._estimates())), None)

    def _estimates(self) -> dict[int, Estimate]:
        return {number: result for number, result in self.known.items() if isinstance(result, Estimate)}

    def _hopes(self, best: int | None) -> dict[int, Estimate]:
        """Predict candidates that may fit and be better than the best; none after enough rehearsals."""
        most = MOST_REHEARSED
        if best is None:
            most = MOST_MISSES
        if len(self.known) >= most:
            return {}
        hopes = {number: self._expect(number) for number in self._open()}
        if best is None:
            return hopes
        return {number: hope for number, hope in hopes.items() if self._is_better(number, best, hope)}

    def _open(self) -> list[int]:
        """List candidates that were not rehearsed and may fit."""
        left = [number for number in self.closed if number not in self.known and not self._is_refuted(number)]
        return [number for number in left if self._can_be_chosen(number)]

    def _is_better(self, number: int, best: int, expected: Estimate) -> bool:
        """Whether a candidate is faster than the best, or as fast and changes less about the job."""
        seconds, best_seconds = _step_seconds(expected), _step_seconds(self._estimates()[best])
        if not is_as_fast(best_seconds, seconds):
            return True
        return self._is_preferred(number, best, expected) and is_as_fast(seconds, best_seconds)

    def _is_preferred(self, number: int, best: int, expected: Estimate) -> bool:
        """Whether a candidate changes less about a job; unless its strategy does, it must surely fit."""
        is_lower = self.listed[number].strategy != self.listed[best].strategy
        return number < best and (is_lower or is_fit(expected))

    def _round(self, hopes: Mapping[int, Estimate], best: int | None) -> list[int]:
        """Take the first that fits if the prediction is exact, and the first that fits within its error.

        If none is likely to fit, take the closest; of those equally close, the one with the smallest bucket,
        because larger ones need not be rehearsed if it does not fit. Once something fits, most others turn
        out not to, so one of another strategy is rehearsed beside the first, on the other core.
        """
        exactly = {number: self._supposing(number, 1.0, LIKELY_CACHE) for number in hopes}
        closest = sorted(hopes, key=lambda number: (hopes[number].need.reserved, self.listed[number].bucket))
        likely = list(dict.fromkeys([*_fitting(exactly)[:1], *_fitting(hopes)[:1]])) or closest[:1]
        if best is not None and len(likely) == 1:
            strategy = self.listed[likely[0]].strategy
            likely += [number for number in closest if self.listed[number].strategy != strategy][:1]
        return likely

    def _can_be_chosen(self, number: int) -> bool:
        """Whether a candidate fits if it takes the least that is predicted.

        If its strategy was not rehearsed, the prediction is less certain, and "too close to tell" is enough.
        """
        least = self._supposing(number, 1 / (1 + self._expect(number).forecast.error), LEAST_CACHE)
        return is_fit(least) or (self._nearest(number)[0] >= ELSEWHERE and _may_fit(least))

    def _supposing(self, number: int, factor: float, cache: float) -> Estimate:
        """Estimate a candidate that takes `factor` times the prediction and reserves `cache` times that."""
        expected = self._expect(number)
        forecast = expected.forecast
        ratios: dict[str, float] = dict.fromkeys(POOLS, factor)
        reserved = forecast.peak("reserved")
        if reserved and self._nearest(number)[0] > BUCKETED:
            ratios["reserved"] *= min(1.0, cache * forecast.peak("gpu") / reserved)
        return self.estimator.revise(expected, replace(forecast.scaled(ratios), error=0.0))

    def _rehearse(self, numbers: Sequence[int], *, resumes: bool = True) -> None:
        queries = [self.listed[number].query for number in numbers]
        results = self.estimator.rehearse(queries, resumes=resumes)
        self.known.update(zip(numbers, results, strict=True))
        self._expectations.clear()
        if len(numbers) == 1 and resumes:
            self.complete.update(numbers)

    def _is_refuted(self, number: int) -> bool:
        """Whether a candidate that surely needs no more does not fit, or DeepSpeed refuses the strategy."""
        candidate = self.listed[number]
        for known, result in self.known.items():
            other = self.listed[known]
            if is_fit(result) or other.strategy != candidate.strategy:
                continue
            if isinstance(result, Rejected) or candidate.needs_more_than(other):
                return True
        return False

    def _expect(self, number: int) -> Estimate:
        """Correct the closed form by the rehearsed candidate most like this one."""
        if number not in self._expectations:
            expected, (far, near) = self.closed[number], self._nearest(number)
            if near is not None:
                expected = self._corrected(expected, far, near)
            self._expectations[number] = expected
        return self._expectations[number]

    def _nearest(self, number: int) -> tuple[float, int | None]:
        candidate = self.listed[number]
        return min(
            ((distance(candidate, self.listed[other]), other) for other in self._estimates()),
            default=(math.inf, None),
        )

    def _missed(self) -> float:
        """Measure the error of the closed form so far; infinite while too little is known."""
        results = self._estimates()
        if len(results) < TRUSTED:
            return math.inf
        peaks = [
            (result.forecast.peak("gpu"), self.closed[number].forecast.peak("gpu"))
            for number, result in results.items()
        ]
        ratios = [real / guess for real, guess in peaks if guess]
        return max((max(ratio, 1 / ratio) - 1 for ratio in ratios), default=math.inf)

    def _corrected(self, closed: Estimate, far: float, near: int) -> Estimate:
        real, guess = self._estimates()[near].forecast, self.closed[near].forecast
        forecast = closed.forecast
        if far < ELSEWHERE:
            error = min(forecast.error, NEAR * (1 + far))
            ratios: dict[str, float] = {
                pool: real.peak(pool) / most for pool in POOLS if (most := guess.peak(pool))
            }
            forecast = replace(forecast.scaled(ratios), error=error)
        else:
            forecast = replace(forecast, error=min(forecast.error, NEAR + 2 * self._missed()))
        if guess.flops:
            forecast = replace(forecast, flops=forecast.flops * (real.flops / guess.flops))
        return self.estimator.revise(closed, forecast)

    def _smallest(self) -> list[int]:
        """List the candidate of each strategy that needs least: one sequence at a time, checkpointing."""

        def size(number: int) -> tuple[int, bool, int]:
            candidate = self.listed[number]
            return candidate.micro_batch, not candidate.checkpointing, candidate.bucket

        return [
            min((n for n in self.closed if self.listed[n].strategy == strategy), key=size)
            for strategy in self.strategies
        ]

    def _nothing(self) -> NothingFits:
        rehearsed = [(self.listed[number], self.known[number]) for number in self._smallest()]
        refuse_if_none_works([result for _, result in rehearsed])
        results = {candidate.strategy: result for candidate, result in (*self.in_closed_form, *rehearsed)}
        refused = [(strategy, result) for strategy, result in results.items() if isinstance(result, Rejected)]
        smallest = [(candidate, result) for candidate, result in rehearsed if isinstance(result, Estimate)]
        return NothingFits(tuple(smallest), tuple(refused))

    def _chosen(self, best: int) -> SearchResult:
        tried = tuple((self.listed[number], result) for number, result in self.known.items())
        estimate = self.known[best]
        assert isinstance(estimate, Estimate), "what fits was estimated"
        likely = {
            self.listed[number].strategy
            for number in self.closed
            if number in self.known or _may_fit(self._expect(number))
        }
        hopeless = tuple(strategy for strategy in self.strategies if strategy not in likely)
        return SearchResult(self.listed[best], estimate, tried, hopeless, self._fastest_other(best))

    def _fastest_other(self, best: int) -> tuple[Candidate, float] | None:
        others = {number: estimate for number, estimate in self._estimates().items() if is_fit(estimate)}
        others |= {number: self._expect(number) for number in self._open()}
        strategy = self.listed[best].strategy
        seconds = [
            (_step_seconds(estimate), number)
            for number, estimate in others.items()
            if self.listed[number].strategy != strategy and _may_fit(estimate)
        ]
        if not seconds:
            return None
        fastest, number = min(seconds)
        return self.listed[number], fastest


def _may_fit(estimate: Estimate) -> bool:
    return estimate.fit in (Fit.YES, Fit.TIGHT)


def _step_seconds(estimate: Estimate) -> float:
    """Seconds of a step; 0 where the speed is unknown, so that no candidate is faster than another."""
    return estimate.seconds or 0.0


def _fitting(estimates: Mapping[int, Estimate]) -> list[int]:
    fitting = {number: estimate.seconds for number, estimate in estimates.items() if is_fit(estimate)}
    return fastest_first(fitting)
