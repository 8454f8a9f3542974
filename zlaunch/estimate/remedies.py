"""Changes that let a job fit that fits on no rung of the ladder."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from zlaunch.errors import Refused
from zlaunch.estimate.changes import ConfigChange, memory_changes
from zlaunch.estimate.fit import Fit
from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected, is_fit
from zlaunch.estimate.strategies import Strategy, apply_strategy

MOST_REMEDIES: Final = 4
CHECKPOINTING: Final = "--activation-checkpointing"

Ask = Callable[[Sequence[EstimateQuery]], Sequence[Estimate | Rejected]]


@dataclass(frozen=True)
class Remedy:
    """A change that lets a job fit on a rung."""

    rung: Strategy
    lever: ConfigChange

    @property
    def words(self) -> str:
        """Say what to type."""
        return f"{self.rung.words} {self.lever.words}"


def remedies(
    question: EstimateQuery, rungs: Sequence[Strategy], estimate: Ask, rehearse: Ask
) -> list[Remedy]:
    """Find up to three changes, each of which lets a job fit that fits on no rung.

    Each is taken on the lowest rung on which it does by the closed form, or else may; a rehearsal confirms.
    """
    found: dict[Fit, dict[str, Remedy]] = {Fit.YES: {}, Fit.TIGHT: {}}
    for rung in rungs:
        for lever in _alone_and_with_checkpointing(apply_strategy(question, rung)):
            (answer,) = estimate([lever.question])
            if isinstance(answer, Estimate) and answer.verdict.fit in found:
                found[answer.verdict.fit].setdefault(lever.words, Remedy(rung, lever))
    tried = list((found[Fit.YES] or found[Fit.TIGHT]).values())[:MOST_REMEDIES]
    answers = rehearse([one.lever.question for one in tried]) if tried else ()
    return [one for one, answer in zip(tried, answers, strict=True) if is_fit(answer)][:3]


def _alone_and_with_checkpointing(question: EstimateQuery) -> Iterator[ConfigChange]:
    """Name the changes of a job, then those of the job with its activations computed again."""
    try:
        settled = question.settled()
    except Refused:
        return
    alone = [lever for lever in memory_changes(question, settled) if not _moves(lever)]
    yield from alone
    for again in alone:
        if again.words == CHECKPOINTING:
            for lever in memory_changes(again.question, settled):
                if not _moves(lever):
                    yield ConfigChange(f"{CHECKPOINTING} {lever.words}", lever.question)


def _moves(lever: ConfigChange) -> bool:
    """Whether a change puts a job on another rung."""
    return lever.words.startswith(("--stage", "--offload"))
