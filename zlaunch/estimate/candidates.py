"""What a search chooses from: every stage, offload, micro-batch and bucket that makes up the same batch."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from zlaunch.dsconfig.keys.read_at import ZERO
from zlaunch.estimate.changes import SMALL_BUCKET
from zlaunch.estimate.query import EstimateQuery
from zlaunch.estimate.strategies import Strategy, apply_strategy, within_reach

STEP: Final = 1.5
"""Two micro-batches, or two buckets, differ at least by this factor: what lies between gains too little."""
CHECKPOINTED, ACCUMULATED, BUCKETED, ELSEWHERE = 2.0, 1.0, 0.25, 8.0
"""Distances of what differs in one thing; of a micro-batch twice as large, it is 1."""

BUCKET: Final = f"{ZERO}.reduce_bucket_size"


@dataclass(frozen=True)
class Candidate:
    """One configuration."""

    rung: Strategy
    checkpointing: bool
    bucket: int
    """Elements that are reduced at once; 0 where that is not for a search to choose."""
    micro_batch: int
    accumulation: int
    question: EstimateQuery

    @property
    def words(self) -> str:
        """Say what to type for it, but for the bucket."""
        checkpointing = " --activation-checkpointing" if self.checkpointing else ""
        return f"{self.rung.words}{checkpointing} --micro-batch {self.micro_batch}"

    def needs_more_than(self, other: "Candidate") -> bool:
        """Whether it surely takes no less memory: more at a time, more kept, in larger buckets.

        Accumulation keeps gradients from one micro-batch to the next, and is compared with its like only.
        """
        return (
            self.rung == other.rung
            and self.micro_batch >= other.micro_batch
            and self.checkpointing <= other.checkpointing
            and self.bucket >= other.bucket
            and (self.accumulation > 1 or other.accumulation == 1)
        )


def candidates(question: EstimateQuery, per_rank: int) -> list[Candidate]:
    """List all configurations for `per_rank` sequences of a rank in a step.

    What changes least about a job comes first: the lower rung, no checkpointing, the usual bucket, and
    then the larger micro-batch.
    """
    return [
        _candidate(question, rung, checkpointing, bucket, (size, per_rank // size))
        for rung in within_reach(question)
        for checkpointing in dict.fromkeys((question.training.activation_checkpointing, True))
        for bucket in buckets(question, rung)
        for size in reversed(sizes(per_rank))
    ]


def sizes(number: int) -> list[int]:
    """List sizes into which a batch can be cut, the smallest first, the whole batch last."""
    found: list[int] = []
    for size in _divisors(number):
        if not found or size >= STEP * found[-1]:
            found.append(size)
    return found  # no divisor is above half of the whole, so that is among them


def _divisors(number: int) -> list[int]:
    small = [size for size in range(1, int(number**0.5) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def buckets(question: EstimateQuery, rung: Strategy) -> Iterator[int]:
    """List buckets: first one that keeps a network busy, then one that saves memory."""
    own = _own_bucket(question)
    if rung.stage == 0 or BUCKET in {name for name, _ in question.job.overrides} or not own:
        yield 0
        return
    large, small = max(own, SMALL_BUCKET), min(own, SMALL_BUCKET)
    yield large
    if large >= STEP * small:
        yield small


def _own_bucket(question: EstimateQuery) -> int | None:
    """Work out the bucket that the Trainer takes: the square of the model's width."""
    hidden = question.given.model and question.given.model.hidden_size
    return hidden * hidden if hidden else None


def _candidate(
    question: EstimateQuery, rung: Strategy, checkpointing: bool, bucket: int, batch: tuple[int, int]
) -> Candidate:
    training = replace(question.training, activation_checkpointing=checkpointing)
    sized = replace(question, training=training)
    for name, value in zip(
        ("per_device_train_batch_size", "gradient_accumulation_steps"), batch, strict=True
    ):
        sized = sized.with_argument(name, value, "`zlaunch plan`")
    if bucket and bucket != _own_bucket(question):
        overrides = (*sized.job.overrides, (BUCKET, bucket))
        sized = replace(sized, job=replace(sized.job, overrides=overrides))
    return Candidate(rung, checkpointing, bucket, *batch, apply_strategy(sized, rung))


def distance(one: Candidate, other: Candidate) -> float:
    """Say how much two candidates differ."""
    return (
        abs(math.log2(one.micro_batch / other.micro_batch))
        + CHECKPOINTED * (one.checkpointing != other.checkpointing)
        + ACCUMULATED * ((one.accumulation > 1) != (other.accumulation > 1))
        + BUCKETED * (one.bucket != other.bucket)
        + ELSEWHERE * (one.rung != other.rung)
    )
