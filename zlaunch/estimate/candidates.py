"""Candidates of a search: all strategies, micro-batches and buckets with the same global batch."""

import math
from collections.abc import Iterator
from itertools import product
from typing import Final

from zlaunch.estimate.changes import BUCKET, SMALL_BUCKET, Options
from zlaunch.estimate.query import EstimateQuery
from zlaunch.estimate.strategies import Strategy, apply_strategy, available
from zlaunch.frozen import dataclass
from zlaunch.job.source import Source

PLAN: Final = Source.option("zlaunch plan")
STEP: Final = 1.5
"""Minimum factor between two micro-batches or two buckets; smaller steps gain too little."""
CHECKPOINTED, ACCUMULATED, BUCKETED, ELSEWHERE = 2.0, 1.0, 0.25, 8.0
"""Distances of candidates that differ in one thing; for a micro-batch twice as large, it is 1."""


@dataclass(frozen=True)
class Candidate:
    """One configuration."""

    strategy: Strategy
    checkpointing: bool
    bucket: int
    """Elements reduced at once; 0 where the search does not choose it."""
    micro_batch: int
    accumulation: int
    query: EstimateQuery

    @property
    def options(self) -> Options:
        """The options for it, without the bucket and the accumulation."""
        checkpointing = self.checkpointing or None
        training = Options(activation_checkpointing=checkpointing, micro_batch=self.micro_batch)
        return self.strategy.options | training

    def needs_more_than(self, other: "Candidate") -> bool:
        """Whether it surely takes no less memory: larger micro-batches and buckets, more kept.

        Accumulation keeps gradients between micro-batches, so it is compared only with its like.
        """
        return (
            self.strategy == other.strategy
            and self.micro_batch >= other.micro_batch
            and self.checkpointing <= other.checkpointing
            and self.bucket >= other.bucket
            and (self.accumulation > 1 or other.accumulation == 1)
        )


def candidates(query: EstimateQuery, per_rank: int) -> list[Candidate]:
    """List all configurations for `per_rank` sequences of a rank in a step.

    What changes least about a job comes first: the earlier strategy, no checkpointing, the usual bucket,
    and then the larger micro-batch.
    """
    listed = []
    checkpointings = dict.fromkeys((query.training.activation_checkpointing, True))
    micro_batches = sizes(per_rank)[::-1]
    for strategy in available(query.job):
        buckets = list(_buckets(query, strategy))
        for checkpointing, bucket, size in product(checkpointings, buckets, micro_batches):
            batch = (size, per_rank // size)
            listed.append(_candidate(query, strategy, checkpointing, bucket, batch))
    return listed


def sizes(number: int) -> list[int]:
    """List sizes into which a batch can be cut, the smallest first, the whole batch last."""
    chosen: list[int] = []
    for size in _divisors(number):
        if not chosen or size >= STEP * chosen[-1]:
            chosen.append(size)
    return chosen  # no divisor is above half of the whole, so that is among them


def _divisors(number: int) -> list[int]:
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def _buckets(query: EstimateQuery, strategy: Strategy) -> Iterator[int]:
    """List buckets: one that keeps a network busy, then one that saves memory."""
    usual = _trainer_bucket(query)
    if strategy.stage == 0 or BUCKET in {name for name, _ in query.job.overrides} or not usual:
        yield 0
        return
    large, small = max(usual, SMALL_BUCKET), min(usual, SMALL_BUCKET)
    yield large
    if large >= STEP * small:
        yield small


def _trainer_bucket(query: EstimateQuery) -> int | None:
    """Compute the bucket size that the Trainer sets: the square of the hidden size."""
    hidden = query.given.model and query.given.model.hidden_size
    if not hidden:
        return None
    return hidden * hidden


def _candidate(
    query: EstimateQuery, strategy: Strategy, checkpointing: bool, bucket: int, batch: tuple[int, int]
) -> Candidate:
    micro_batch, accumulation = batch
    overrides: tuple[tuple[str, object], ...] = ()
    if bucket and bucket != _trainer_bucket(query):
        overrides = ((BUCKET, bucket),)
    options = Options(
        overrides=overrides,
        activation_checkpointing=checkpointing,
        micro_batch=micro_batch,
        grad_accum=accumulation,
    )
    moved = apply_strategy(query.with_options(options, source=PLAN), strategy)
    return Candidate(strategy, checkpointing, bucket, micro_batch, accumulation, moved)


def distance(first: Candidate, second: Candidate) -> float:
    """Measure how much two candidates differ."""
    return (
        abs(math.log2(first.micro_batch / second.micro_batch))
        + CHECKPOINTED * (first.checkpointing != second.checkpointing)
        + ACCUMULATED * ((first.accumulation > 1) != (second.accumulation > 1))
        + BUCKETED * (first.bucket != second.bucket)
        + ELSEWHERE * (first.strategy != second.strategy)
    )
