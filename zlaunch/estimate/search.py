"""The fastest configuration that fits, found without a trial run.

A branch and bound: the closed form says how much memory each candidate takes and how fast it is, and a
rehearsal how it really is. Each rehearsal corrects what is expected of its neighbours. The search ends when
no candidate is left that may fit and would be faster than the best one that was rehearsed; `is_as_fast`
says what counts as faster. Before it says that nothing fits, it has looked at every rung at its smallest.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from zlaunch.estimate.candidates import ELSEWHERE, Candidate, candidates, distance
from zlaunch.estimate.fit import Fit
from zlaunch.estimate.forecast import POOLS, Forecast
from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected, is_fit, refuse_if_none_works
from zlaunch.estimate.strategies import Strategy, apply_strategy, is_as_fast, within_reach

MOST_REHEARSED: Final = 20
"""From then on the best that was found is good enough."""
MOST_MISSES: Final = 6
"""After so many rehearsals of which none fits, the smallest of all rungs are rehearsed."""

NEAR: Final = 0.02
"""How far memory may be off, as a fraction, that is expected by a neighbour just like it; it grows with the
distance of the neighbour, up to what the closed form alone may be off."""
TRUSTED: Final = 3
"""After so many rehearsals, what they say of the closed form is believed of the rest."""
LEAST_CACHE, LIKELY_CACHE = 1.05, 1.1
"""How many times what tensors hold is reserved where no neighbour tells: at least, and probably."""


class Estimator(Protocol):
    """What answers a search."""

    def estimate(self, questions: Sequence[EstimateQuery], /) -> Sequence[Estimate | Rejected]:
        """Answer at once, by the closed form."""

    def rehearse(self, questions: Sequence[EstimateQuery], /) -> Sequence[Estimate | Rejected]:
        """Answer for sure; of a single question, all ranks that differ are rehearsed."""

    def revise(self, answer: Estimate, forecast: Forecast, /) -> Estimate:
        """Answer the same question with another forecast."""


@dataclass(frozen=True)
class SearchResult:
    """What was chosen, and what else was looked at."""

    candidate: Candidate
    answer: Estimate
    tried: tuple[tuple[Candidate, Estimate | Rejected], ...]
    """What was rehearsed."""
    hopeless: tuple[Strategy, ...]
    """Rungs that were not rehearsed because nothing on them may fit by the closed form."""
    other: tuple[Candidate, float] | None
    """The fastest candidate of another rung that fits, or may, and the seconds of a step of it."""


@dataclass(frozen=True)
class NothingFits:
    """Every rung that works was looked at with its smallest candidate, and none surely fits."""

    smallest: tuple[tuple[Candidate, Estimate], ...]
    refused: tuple[tuple[Strategy, Rejected], ...]

    @property
    def fit(self) -> Fit:
        """Say whether it is close."""
        return Fit.TIGHT if any(one.verdict.fit is Fit.TIGHT for _, one in self.smallest) else Fit.NO

    @property
    def closest(self) -> tuple[Candidate, Estimate]:
        """Name what needs least of the GPU, of what is close if there is any."""
        close = [one for one in self.smallest if one[1].verdict.fit is self.fit]
        return min(close, key=lambda one: one[1].need.reserved)


def search(question: EstimateQuery, per_rank: int, appraiser: Estimator) -> SearchResult | NothingFits:
    """Find the fastest configuration for `per_rank` sequences of a rank in a step.

    Raises Refused if none can work at all.
    """
    listed = candidates(question, per_rank)
    closed = appraiser.estimate([one.question for one in listed])
    if not any(isinstance(one, Estimate) for one in closed):
        refuse_if_none_works(
            appraiser.estimate([apply_strategy(question, rung) for rung in within_reach(question)])
        )
    return _Search(listed, closed, appraiser).run()


class _Search:
    """What is known of all candidates, each by its number: the lower, the less it changes about a job."""

    def __init__(
        self, listed: Sequence[Candidate], closed: Sequence[Estimate | Rejected], appraiser: Estimator
    ) -> None:
        self.listed = listed
        self.asked = list(zip(listed, closed, strict=True))
        self.closed = {number: one for number, one in enumerate(closed) if isinstance(one, Estimate)}
        self.appraiser = appraiser
        self.known: dict[int, Estimate | Rejected] = {}
        self.whole: set[int] = set()
        """Of which all ranks that differ were rehearsed."""
        self._expectations: dict[tuple[int, int], Estimate] = {}

    def run(self) -> SearchResult | NothingFits:
        """Rehearse until nothing better can be hoped for."""
        while True:
            best = self._best()
            hopes = self._hopes(best)
            if hopes:
                self._look(self._round(hopes))
            elif best is None:
                left = [number for number in self._smallest() if number not in self.known]
                if not left:
                    return self._nothing()
                self._look(left)
            elif best not in self.whole:
                self._look([best])
            else:
                return self._found(best)

    def _best(self) -> int | None:
        """Name the first of what surely fits."""
        fitting = {number: one for number, one in self._answers().items() if is_fit(one)}
        return next(iter(_in_order(fitting)), None)

    def _answers(self) -> dict[int, Estimate]:
        return {number: one for number, one in self.known.items() if isinstance(one, Estimate)}

    def _hopes(self, best: int | None) -> dict[int, Estimate]:
        """Expect what may fit and would come before the best; nothing if enough was rehearsed."""
        if len(self.known) >= (MOST_MISSES if best is None else MOST_REHEARSED):
            return {}
        open_ = [
            number for number in self.closed if number not in self.known and not self._is_refuted(number)
        ]
        hopes = {number: self._expect(number) for number in open_ if self._can_be_chosen(number)}
        if best is None:
            return hopes
        seconds = _seconds(self._answers()[best])
        return {
            number: one
            for number, one in hopes.items()
            if not is_as_fast(seconds, _seconds(one))
            or (self._is_preferred(number, best, one) and is_as_fast(_seconds(one), seconds))
        }

    def _is_preferred(self, number: int, best: int, expected: Estimate) -> bool:
        """Whether a candidate changes less about a job: on a lower rung it may fit, on its own it must."""
        is_lower = self.listed[number].rung != self.listed[best].rung
        return number < best and (is_lower or is_fit(expected))

    def _round(self, hopes: Mapping[int, Estimate]) -> list[int]:
        """Take the first that fits if the expectation is right, and the first that does all the same.

        If nothing is likely to fit, take what comes closest.
        """
        exactly = {number: self._supposing(number, 1.0, LIKELY_CACHE) for number in hopes}
        likely = _in_order({number: one for number, one in exactly.items() if is_fit(one)})
        surely = _in_order({number: one for number, one in hopes.items() if is_fit(one)})
        closest = sorted(hopes, key=lambda number: hopes[number].need.reserved)
        return list(dict.fromkeys([*likely[:1], *surely[:1]])) or closest[:1]

    def _can_be_chosen(self, number: int) -> bool:
        """Whether a candidate fits for sure if it takes the least that is expected."""
        least = 1 / (1 + self._expect(number).forecast.error)
        return is_fit(self._supposing(number, least, LEAST_CACHE))

    def _supposing(self, number: int, factor: float, cache: float) -> Estimate:
        """Answer as if a candidate took so many times what is expected, and reserved so many times that."""
        expected = self._expect(number)
        forecast = expected.forecast
        ratios: dict[str, float] = dict.fromkeys(POOLS, factor)
        reserved = forecast.peak("reserved")
        if reserved and self._nearest(number)[0] >= ELSEWHERE:
            ratios["reserved"] *= min(1.0, cache * forecast.peak("gpu") / reserved)
        return self.appraiser.revise(expected, replace(forecast.scaled(ratios), error=0.0))

    def _look(self, numbers: Sequence[int]) -> None:
        answers = self.appraiser.rehearse([self.listed[number].question for number in numbers])
        self.known.update(zip(numbers, answers, strict=True))
        self._expectations.clear()
        if len(numbers) == 1:
            self.whole.update(numbers)

    def _is_refuted(self, number: int) -> bool:
        """Whether what surely needs no more does not fit, or DeepSpeed refuses the rung."""
        own = self.listed[number]
        return any(
            self.listed[other].rung == own.rung
            and (isinstance(answer, Rejected) or own.needs_more_than(self.listed[other]))
            for other, answer in self.known.items()
            if not is_fit(answer)
        )

    def _expect(self, number: int) -> Estimate:
        """Correct the closed form by the rehearsed neighbour that is most like a candidate."""
        closed = self.closed[number]
        far, near = self._nearest(number)
        if near is None:
            return closed
        key = number, near
        if key not in self._expectations:
            self._expectations[key] = self._corrected(closed, far, near)
        return self._expectations[key]

    def _nearest(self, number: int) -> tuple[float, int | None]:
        """Find the rehearsed neighbour that is most like a candidate, and how much it differs."""
        own = self.listed[number]
        return min(
            ((distance(own, self.listed[other]), other) for other in self._answers()),
            default=(math.inf, None),
        )

    def _missed(self) -> float:
        """Say by how much the closed form was off so far; infinitely, while too little is known."""
        answers = self._answers()
        if len(answers) < TRUSTED:
            return math.inf
        pools = ((one.forecast, self.closed[number].forecast) for number, one in answers.items())
        ratios = [real.peak("gpu") / guess.peak("gpu") for real, guess in pools if guess.peak("gpu")]
        return max((max(ratio, 1 / ratio) - 1 for ratio in ratios), default=math.inf)

    def _corrected(self, closed: Estimate, far: float, near: int) -> Estimate:
        real, guess = self._answers()[near].forecast, self.closed[near].forecast
        forecast = closed.forecast
        if far < ELSEWHERE:
            error = min(forecast.error, NEAR * (1 + far))
            forecast = replace(forecast.scaled(_corrections(guess, real)), error=error)
        else:
            forecast = replace(forecast, error=min(forecast.error, NEAR + 2 * self._missed()))
        flops = forecast.flops * (real.flops / guess.flops if guess.flops else 1.0)
        return self.appraiser.revise(closed, replace(forecast, flops=flops))

    def _smallest(self) -> list[int]:
        """Name what needs least on each rung: one sequence at a time, activations computed again."""

        def size(number: int) -> tuple[int, bool, int]:
            one = self.listed[number]
            return one.micro_batch, not one.checkpointing, one.bucket

        rungs = dict.fromkeys(self.listed[number].rung for number in self.closed)
        return [min((n for n in self.closed if self.listed[n].rung == rung), key=size) for rung in rungs]

    def _nothing(self) -> NothingFits:
        looked = [(self.listed[number], self.known[number]) for number in self._smallest()]
        refuse_if_none_works([answer for _, answer in looked])
        told = {one.rung: answer for one, answer in (*self.asked, *looked)}
        refused = tuple((rung, one) for rung, one in told.items() if isinstance(one, Rejected))
        return NothingFits(tuple((one, it) for one, it in looked if isinstance(it, Estimate)), refused)

    def _found(self, best: int) -> SearchResult:
        tried = tuple((self.listed[number], answer) for number, answer in self.known.items())
        answer = self.known[best]
        assert isinstance(answer, Estimate), "what fits was answered"
        open_ = {self.listed[n].rung for n in self.closed if n in self.known or _may_fit(self._expect(n))}
        rungs = dict.fromkeys(self.listed[number].rung for number in self.closed)
        hopeless = tuple(rung for rung in rungs if rung not in open_)
        return SearchResult(self.listed[best], answer, tried, hopeless, self._other(best))

    def _other(self, best: int) -> tuple[Candidate, float] | None:
        """Name the fastest candidate of another rung that fits or may."""
        others = {number: one for number, one in self._answers().items() if is_fit(one)}
        for number in self.closed:
            if number not in self.known and not self._is_refuted(number):
                others[number] = self._expect(number)
        rung = self.listed[best].rung
        seconds = {
            n: _seconds(one) for n, one in others.items() if self.listed[n].rung != rung and _may_fit(one)
        }
        first = min(seconds, key=lambda number: (seconds[number], number), default=None)
        return None if first is None else (self.listed[first], seconds[first])


def _may_fit(answer: Estimate) -> bool:
    return answer.verdict.fit in (Fit.YES, Fit.TIGHT)


def _seconds(answer: Estimate) -> float:
    """Say how long a step takes; 0 where nobody knows, so that no candidate is faster than another."""
    return answer.seconds or 0.0


def _in_order(answers: Mapping[int, Estimate]) -> list[int]:
    """Put the fastest first; of those as fast as each other, what changes least about a job."""
    left, ordered = {number: _seconds(answers[number]) for number in sorted(answers)}, []
    while left:
        fastest = min(left.values())
        ordered.append(next(number for number, seconds in left.items() if is_as_fast(seconds, fastest)))
        del left[ordered[-1]]
    return ordered


def _corrections(guess: Forecast, real: Forecast) -> dict[str, float]:
    """Say for each pool by what a rehearsal differs from the closed form."""
    return {pool: real.peak(pool) / most for pool in POOLS if (most := guess.peak(pool))}
