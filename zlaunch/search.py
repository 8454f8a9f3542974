"""The fastest configuration that fits, found without a trial run.

Every rung of the ladder, with and without activation checkpointing, takes the largest micro-batch that may
fit by the closed form, and the largest that surely does. The fastest are rehearsed, both sizes at once, and
only what a rehearsal confirms is chosen.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from zlaunch.answers import Answer, Refusal, is_fit, refuse_if_none_works
from zlaunch.dsconfig.reach import ZERO
from zlaunch.errors import Refused
from zlaunch.fit import Fit
from zlaunch.ladder import Rung, is_as_fast, on, within_reach
from zlaunch.levers import SMALL_BUCKET, Lever, levers
from zlaunch.workloads import Question

MOST_ROUNDS: Final = 4
"""More would cost a person more patience than the last per cent of speed is worth."""

MOST_REMEDIES: Final = 4
CHECKPOINTING: Final = "--activation-checkpointing"

Ask = Callable[[Sequence[Question]], Sequence[Answer | Refusal]]


@dataclass(frozen=True)
class Candidate:
    """One configuration."""

    rung: Rung
    checkpointing: bool
    micro_batch: int
    accumulation: int
    question: Question


@dataclass(frozen=True)
class Promise:
    """What the closed form says of a rung: the largest micro-batch that may fit, and a safe one."""

    hoped: Candidate
    safe: Candidate | None
    answer: Answer
    """Of the closed form, for what is hoped."""


@dataclass(frozen=True)
class Found:
    """What was chosen, and what else was looked at."""

    candidate: Candidate
    answer: Answer
    rejected: tuple[tuple[Candidate, Answer], ...]
    """By a rehearsal."""
    promises: tuple[Promise, ...]
    """Of all rungs that may fit, the fastest first."""


@dataclass(frozen=True)
class Remedy:
    """A change that lets a job fit on a rung."""

    rung: Rung
    lever: Lever

    @property
    def words(self) -> str:
        """Say what to type."""
        return f"{self.rung.words} {self.lever.words}"


def search(question: Question, per_rank: int, estimate: Ask, rehearse: Ask) -> Found | None:
    """Find the fastest configuration for `per_rank` sequences of a rank in a step; None if nothing fits.

    Raises Refused if none can work at all.
    """
    promises = _in_order(_promises(question, per_rank, estimate))
    if not promises:
        refuse_if_none_works(estimate([on(question, rung) for rung in within_reach(question)]))
    rehearsed: list[Answer | Refusal] = []
    rejected: list[tuple[Candidate, Answer]] = []
    for promise in promises[:MOST_ROUNDS]:
        tried = [promise.hoped]
        if promise.safe is not None and promise.safe != promise.hoped:
            tried.append(promise.safe)
        answers = rehearse([one.question for one in tried])
        rehearsed += answers
        for candidate, answer in zip(tried, answers, strict=True):
            if not isinstance(answer, Answer):
                continue
            if answer.verdict.fit is Fit.YES:
                return Found(candidate, answer, tuple(rejected), tuple(promises))
            rejected.append((candidate, answer))
    refuse_if_none_works(rehearsed)
    return None


def remedies(question: Question, rungs: Sequence[Rung], estimate: Ask, rehearse: Ask) -> list[Remedy]:
    """Find up to three changes, each of which lets a job fit that fits on no rung.

    Each is taken on the lowest rung on which it does by the closed form, or else may; a rehearsal confirms.
    """
    found: dict[Fit, dict[str, Remedy]] = {Fit.YES: {}, Fit.TIGHT: {}}
    for rung in rungs:
        for lever in _alone_and_with_checkpointing(on(question, rung)):
            (answer,) = estimate([lever.question])
            if isinstance(answer, Answer) and answer.verdict.fit in found:
                found[answer.verdict.fit].setdefault(lever.words, Remedy(rung, lever))
    tried = list((found[Fit.YES] or found[Fit.TIGHT]).values())[:MOST_REMEDIES]
    answers = rehearse([one.lever.question for one in tried]) if tried else ()
    return [one for one, answer in zip(tried, answers, strict=True) if is_fit(answer)][:3]


def _alone_and_with_checkpointing(question: Question) -> Iterator[Lever]:
    """Name the changes of a job, then those of the job with its activations computed again."""
    try:
        settled = question.settled()
    except Refused:
        return
    alone = [lever for lever in levers(question, settled) if not _moves(lever)]
    yield from alone
    for again in alone:
        if again.words == CHECKPOINTING:
            for lever in levers(again.question, settled):
                if not _moves(lever):
                    yield Lever(f"{CHECKPOINTING} {lever.words}", lever.question)


def _moves(lever: Lever) -> bool:
    """Whether a change puts a job on another rung."""
    return lever.words.startswith(("--stage", "--offload"))


def divisors(number: int) -> list[int]:
    """List the sizes into which a batch can be cut, the smallest first."""
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def _promises(question: Question, per_rank: int, ask: Ask) -> Iterator[Promise]:
    """Ask the closed form about every rung, with and without checkpointing."""
    sizes = divisors(per_rank)
    for rung in within_reach(question):
        for checkpointing in dict.fromkeys((question.training.activation_checkpointing, True)):
            candidates = [_candidate(question, rung, checkpointing, size, per_rank) for size in sizes]
            hoped = _largest(candidates, ask, (Fit.YES, Fit.TIGHT))
            if hoped is not None:
                safe = _largest(candidates, ask, (Fit.YES,))
                yield Promise(hoped[0], None if safe is None else safe[0], hoped[1])


def _largest(
    candidates: Sequence[Candidate], ask: Ask, enough: Sequence[Fit]
) -> tuple[Candidate, Answer] | None:
    """Find the last candidate that fits; they need more and more."""
    low, high, found = 0, len(candidates) - 1, None
    while low <= high:
        middle = (low + high) // 2
        (answer,) = ask([candidates[middle].question])
        if isinstance(answer, Answer) and answer.verdict.fit in enough:
            found, low = (candidates[middle], answer), middle + 1
        else:
            high = middle - 1
    return found


def _candidate(
    question: Question, rung: Rung, checkpointing: bool, micro_batch: int, per_rank: int
) -> Candidate:
    accumulation = per_rank // micro_batch
    training = replace(question.training, activation_checkpointing=checkpointing)
    sized = replace(question, training=training).with_argument(
        "per_device_train_batch_size", micro_batch, "`zlaunch plan`"
    )
    sized = sized.with_argument("gradient_accumulation_steps", accumulation, "`zlaunch plan`")
    return Candidate(rung, checkpointing, micro_batch, accumulation, _with_bucket(on(sized, rung), rung))


def _with_bucket(question: Question, rung: Rung) -> Question:
    """Take buckets that a network can be kept busy with, where the Trainer's would be tiny."""
    key, hidden = f"{ZERO}.reduce_bucket_size", question.given.model and question.given.model.hidden_size
    named = {name for name, _ in question.job.overrides}
    if rung.stage == 0 or key in named or not hidden or hidden * hidden >= SMALL_BUCKET:
        return question
    overrides = (*question.job.overrides, (key, SMALL_BUCKET))
    return replace(question, job=replace(question.job, overrides=overrides))


def _in_order(promises: Iterator[Promise]) -> list[Promise]:
    """Put the fastest first; of those as fast as each other, what changes least about a job."""
    listed, ordered = list(promises), []
    while listed:
        times = [one.answer.seconds for one in listed]
        fastest = min((time for time in times if time is not None), default=None)
        first = next(
            number
            for number, time in enumerate(times)
            if fastest is None or (time is not None and is_as_fast(time, fastest))
        )
        ordered.append(listed.pop(first))
    return ordered
