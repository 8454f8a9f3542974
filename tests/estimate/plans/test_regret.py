"""The search against all configurations of twelve questions, each rehearsed once and written down.

The oracle is a look through the whole table; nothing of the search is in it.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace

from tests.each import each
from tests.estimate.plans.questions import QUESTIONS, label
from tests.estimate.plans.record import recorded
from zlaunch.errors import Refused
from zlaunch.estimate.candidates import candidates
from zlaunch.estimate.estimator import Estimator
from zlaunch.estimate.fit import Fit
from zlaunch.estimate.forecast import POOLS, Phase
from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected
from zlaunch.estimate.search import SearchResult, search

MOST_REGRET = 0.05
SOON = {1.0: 8, 0.65: 16, 1.5: 16}
"""By which factor the closed form is off → rehearsals that a person waits for."""


class Table(Estimator):
    """Answers rehearsals from the record, and counts them."""

    def __init__(self, name: str, off: float = 1.0) -> None:
        """Multiply the closed form's memory by `off`."""
        super().__init__()
        asked = QUESTIONS[name]
        self.rows, self.off, self.known = recorded()[name], off, closed_forms(name)
        listed = candidates(asked.question, asked.per_rank)
        self.labels = {_settings(one.query): label(one) for one in listed}
        self.seen: set[str] = set()

    def closed_form(self, queries: Sequence[EstimateQuery]) -> list[Estimate | Rejected]:
        new = {_settings(one): one for one in queries if _settings(one) not in self.known}
        self.known.update(zip(new, super().closed_form([*new.values()]), strict=True))
        return [self.worse(self.known[_settings(one)]) for one in queries]

    def worse(self, answer: Estimate | Rejected) -> Estimate | Rejected:
        if isinstance(answer, Rejected) or self.off == 1.0:
            return answer
        return self.revise(answer, answer.forecast.scaled(dict.fromkeys(POOLS, self.off)))

    def rehearse(
        self, queries: Sequence[EstimateQuery], *, resumes: bool = True
    ) -> list[Estimate | Rejected]:
        self.seen.update(self.labels[_settings(one)] for one in queries)
        return [self.answer(one) for one in queries]

    def answer(self, one: EstimateQuery) -> Estimate | Rejected:
        row = self.rows[self.labels[_settings(one)]]
        if row is None:
            return Rejected(Refused(()))
        (closed,) = self.closed_form([one])
        assert isinstance(closed, Estimate)
        peaks = {pool: size for pool, size in row.items() if pool != "flops"}
        told = replace(
            closed.forecast,
            method="rehearsal",
            phases=(Phase("second step", peaks, peaks),),
            flops=row["flops"],
            error=0.0,
        )
        return self.revise(closed, told)


@functools.cache
def closed_forms(_name: str) -> dict[str, Estimate | Rejected]:
    """Share what the closed form says of a question's candidates, which takes longer than the search."""
    return {}


def _settings(one: EstimateQuery) -> str:
    return repr((one.job, one.training, one.given.args))


@functools.cache
def best_of_all(name: str) -> tuple[float, str]:
    """Look through the whole table for the fastest that fits."""
    asked = QUESTIONS[name]
    table = Table(name)
    seconds, _, words = min(
        (answer.seconds or 0.0, number, str(one.options))
        for number, one in enumerate(candidates(asked.question, asked.per_rank))
        if isinstance(answer := table.answer(one.query), Estimate) and answer.fit is Fit.YES
    )
    return seconds, words


def outcome(name: str, off: float = 1.0) -> tuple[str, str, float, int]:
    """Return the choice, the best of all, how much slower the choice is, and the number of rehearsals."""
    asked = QUESTIONS[name]
    table = Table(name, off)
    found = search(asked.question, asked.per_rank, table)
    assert isinstance(found, SearchResult)
    best, words = best_of_all(name)
    seconds = table.answer(found.candidate.query)
    assert isinstance(seconds, Estimate)
    assert seconds.seconds is not None
    return str(found.candidate.options), words, seconds.seconds / best - 1, len(table.seen)


@each("off", SOON)
@each("name", QUESTIONS)
def test_what_is_chosen_is_hardly_slower_than_the_best_of_all(name: str, off: float) -> None:
    *_, regret, num_rehearsed = outcome(name, off)
    assert regret <= MOST_REGRET
    assert num_rehearsed <= SOON[off]


if __name__ == "__main__":
    print("| question | choice | best of all | regret | rehearsed |\n|---|---|---|---|---|")
    for name in recorded():
        chosen, best, regret, num_rehearsed = outcome(name)
        print(f"| {name} | `{chosen}` | `{best}` | {regret:.1%} | {num_rehearsed} |")
