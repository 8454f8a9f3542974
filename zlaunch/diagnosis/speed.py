"""What limits the speed of a run: the time of a step by part, of every rank, and what to change.

Nothing is said of what takes less than `LEAST_SHARE` of the time.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final

from zlaunch.diagnosis.advice import setting, state_of
from zlaunch.diagnosis.evidence import JobEvidence
from zlaunch.diagnosis.verdict import Verdict
from zlaunch.dsconfig.batch import rank_groups
from zlaunch.estimate.changes import Options, speed_changes
from zlaunch.frozen import dataclass
from zlaunch.rundir import phases
from zlaunch.units import brief, memory, plural

LEAST_SHARE: Final = 0.10
LEAST_STEPS: Final = 10
"""Fewer timed steps say nothing."""
OUTSIDE: Final = (phases.SAVING, phases.EVALUATING)
"""Phases between steps that belong to training."""
HALF_BUSY: Final = 0.75
"""A main thread that has less of a CPU than this, and less than the others, shares it with something else."""
MOST_LEFT: Final = 0.7
"""Share of the deviation from one level that two levels may leave."""
LEAST_CHANGE: Final = 1.2
"""How many times as long steps have to take before that is a change."""
SPLIT_STEPS: Final = 5
"""Steps on each side of a jump."""
MOST_BLOCKS: Final = 200
"""Steps are looked at in at most so many blocks."""
FEW_FLOPS: Final = 0.05
"""Share of a device's FLOP/s below which micro-batches are too small for it."""
FIXED: Final = (phases.COMMUNICATION, phases.STEPPING, phases.TRAINING)
"""Parts whose time does not depend on the size of a micro-batch."""
MUCH_FIXED: Final = 0.4
SMALL_BATCH: Final = 512
"""Tokens of a micro-batch; a larger one occupies a device."""


@dataclass(frozen=True, slots=True)
class RankTime:
    """The time of a step of one rank, in seconds."""

    rank: int
    host: str
    parts: Mapping[str, float]
    """Phase of a step, or part of one → seconds."""
    busy: float | None = None
    """Share of the forward and backward passes in which its main thread had a CPU."""
    device: str = ""
    """The model of its GPU."""

    @property
    def seconds(self) -> float:
        """All parts."""
        return sum(self.parts.values())

    @property
    def own(self) -> float:
        """All parts but communication, in which a rank waits for the others, too."""
        return self.seconds - self.parts.get(phases.COMMUNICATION, 0.0)


@dataclass(frozen=True, slots=True)
class TimedLine:
    """One or more steps of the first rank in a row: the number of the last, and the mean time in seconds."""

    step: int
    seconds: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """Part → mean seconds of a step since the last line that has parts; empty if this one has none."""


@dataclass(frozen=True, slots=True)
class SpeedEvidence:
    """What is known of the speed of a run."""

    job: JobEvidence
    ranks: Sequence[RankTime]
    lines: Sequence[TimedLine] = ()
    outside: Mapping[str, float] = field(default_factory=dict)
    """Saving and evaluating → seconds per step of the first rank."""
    workers: int | None = None
    """Processes that load data, as a Trainer was told; None if unknown."""
    threads: int | None = None
    """`OMP_NUM_THREADS` of a rank; None if it is not set."""
    cores: int | None = None
    """CPU cores of a host, shared by its ranks; None if unknown."""
    flops_share: float | None = None
    """Share of the GPU's FLOP/s that the model's operations reach: MFU; None if unknown."""
    tokens: int | None = None
    """Tokens of a micro-batch; None if unknown."""
    room: int | None = None
    """Bytes of the device that were never used; None if unknown."""
    unsaved: int | None = None
    """Bytes of activations that are recomputed instead of saved; None if unknown."""
    allocator_retries: int = 0
    num_steps: int = 0
    """Steps since the warm-up, as are the retries."""

    @property
    def seconds(self) -> float:
        """The mean time of a step."""
        return statistics.fmean(rank.seconds for rank in self.ranks)

    @property
    def total(self) -> float:
        """The mean time of a step with its share of checkpoints and evaluations."""
        return self.seconds + sum(self.outside.values())

    @property
    def knows_peers(self) -> bool:
        """Whether there are several ranks, and all are known: one that is not may be the slow one."""
        return len(self.ranks) >= max(2, self.job.world_size)

    def usual(self, part: str) -> float:
        """The time of a part on most ranks: a single slow one is another matter."""
        return statistics.median_low([rank.parts.get(part, 0.0) for rank in self.ranks])

    def changes(self, saves: str) -> list[str]:
        """Advise the changes that save time of one kind, with options of `zlaunch train`."""
        rows = speed_changes(state_of(self.job), saves)
        advice = (self.option(options, row.effect) for row, options in rows)
        return [text for text in advice if text]

    def option(self, options: Options, effect: str) -> str | None:
        """Write options of `zlaunch train` and their effect; None if only the script can set them."""
        if not self.job.takes_ds_config:
            return None
        typed = options.for_train(self.job.setting)
        return typed and f"`{typed}`: {effect}"


@dataclass(frozen=True, slots=True)
class SpeedLoss:
    """Something that costs time."""

    share: float
    """Of the time of training: what would be saved without it, at most."""
    verdict: Verdict


def speed_losses(evidence: SpeedEvidence) -> list[SpeedLoss]:
    """List what costs at least a tenth of the time, the most expensive first."""
    if not evidence.ranks or evidence.seconds <= 0:
        return []
    losses = [loss for check in CHECKS for loss in check(evidence) if loss.share >= LEAST_SHARE]
    return sorted(losses, key=lambda loss: -loss.share)


def _loss(
    code: str,
    share: float,
    cause: str,
    facts: Iterable[str | None] = (),
    advice: Iterable[str | None] = (),
) -> SpeedLoss:
    known, changes = (tuple(text for text in texts if text) for texts in (facts, advice))
    return SpeedLoss(share, Verdict(code, cause, facts=known, advice=changes))


def _of_a_step(evidence: SpeedEvidence, seconds: float) -> str:
    return f"{seconds / evidence.seconds:.0%} of a step: {brief(seconds)} of {brief(evidence.seconds)}"


def _takes(
    evidence: SpeedEvidence,
    code: str,
    what: str,
    seconds: float,
    *,
    facts: Iterable[str | None] = (),
    advice: Iterable[str | None] = (),
) -> SpeedLoss:
    """Say what takes so many seconds of a step; `what` ends with its verb."""
    return _loss(code, seconds / evidence.total, f"{what} {_of_a_step(evidence, seconds)}", facts, advice)


def _data(evidence: SpeedEvidence) -> Iterator[SpeedLoss]:
    """Ranks wait for the next batch."""
    seconds = evidence.usual(phases.DATA)
    yield _takes(
        evidence,
        "waiting-for-data",
        "waiting for data takes",
        seconds,
        facts=(_workers(evidence),),
        advice=(_more_workers(evidence),),
    )


def _workers(evidence: SpeedEvidence) -> str | None:
    if evidence.workers is None:
        return None
    if evidence.workers == 0:
        return "no worker: each rank prepares its batches itself, between the steps"
    return f"{plural(evidence.workers, 'worker')} of each rank cannot keep up"


def _more_workers(evidence: SpeedEvidence) -> str:
    workers = evidence.workers
    if workers:
        return "more workers, or prepare the data once before training: `Dataset.map`, a faster disk"
    if evidence.job.setting == "argument" and workers == 0:
        return "`-- --dataloader_num_workers 2`: prepare batches while the step before is computed"
    if evidence.job.names_workers:
        return "more `num_workers` in its `DataLoader`, or prepare the data once before training"
    return "`num_workers=2` in its `DataLoader`: prepare batches while the step before is computed"


def _slow_rank(evidence: SpeedEvidence) -> Iterator[SpeedLoss]:
    """All ranks wait for one that is slower than the others."""
    if not evidence.knows_peers:
        return
    slowest = max(evidence.ranks, key=lambda rank: rank.own)
    others = [rank for rank in evidence.ranks if rank is not slowest]
    usual = statistics.median_low([rank.own for rank in others])
    facts = [f"without communication {brief(slowest.own)} a step, the others {brief(usual)}"]
    longer = _longer_part(slowest, others)
    if longer is not None:
        there, elsewhere = slowest.parts[longer], _elsewhere(others, longer)
        facts.append(f"{part_name(longer)} takes {brief(there)} there, {brief(elsewhere)} elsewhere")
    why, advice = _why_slow(slowest, others, longer)
    if why:
        facts.append(why)
    yield _loss(
        "slow-rank",
        (slowest.own - usual) / evidence.total,
        f"rank {slowest.rank} on {slowest.host} is slower than {_names(others)}",
        facts,
        advice,
    )


def _names(others: Sequence[RankTime]) -> str:
    if len(others) == 1:
        return f"rank {others[0].rank}, which waits for it"
    return "the others, which wait for it"


def _elsewhere(others: Sequence[RankTime], part: str) -> float:
    return statistics.median_low([rank.parts.get(part, 0.0) for rank in others])


def _longer_part(slowest: RankTime, others: Sequence[RankTime]) -> str | None:
    """Find what a slow rank spends more time in than the others, beside waiting for them."""
    extra = {
        part: seconds - _elsewhere(others, part)
        for part, seconds in slowest.parts.items()
        if part != phases.COMMUNICATION
    }
    return max(extra, key=lambda part: extra[part], default=None)


def _why_slow(
    slowest: RankTime, others: Sequence[RankTime], longer: str | None
) -> tuple[str, list[str | None]]:
    devices = {rank.device for rank in others}
    if slowest.device and slowest.device not in devices:
        return f"its GPU is {slowest.device}, that of the others {', '.join(sorted(devices))}", [
            "leave it out with `--include` or `--gpus`, or use GPUs of one model"
        ]
    if longer == phases.DATA:
        return "", ["look at the disk or the preprocessing of its data"]
    busiest = max((rank.busy or 0.0 for rank in others), default=0.0)
    if slowest.busy is not None and slowest.busy < min(HALF_BUSY, busiest - 0.1):
        text = f"its main thread had {slowest.busy:.0%} of a CPU while it computed, the others {busiest:.0%}"
        return text, [f"stop what else runs on {slowest.host}, or give the job fewer cores there"]
    return "", []


def _communication(evidence: SpeedEvidence) -> Iterator[SpeedLoss]:
    """Communication that nothing overlaps, also of the rank that waits least."""
    if not evidence.knows_peers:
        return
    least = min(evidence.ranks, key=lambda rank: rank.parts.get(phases.COMMUNICATION, 0.0))
    seconds = least.parts.get(phases.COMMUNICATION, 0.0)
    hosts = len({rank.host for rank in evidence.ranks})
    where = "within one host" if hosts == 1 else f"between {hosts} hosts"
    yield _takes(
        evidence,
        "exposed-communication",
        "communication takes at least",
        seconds,
        facts=(
            f"{plural(len(evidence.ranks), 'rank')} {where}, stage {evidence.job.stage}",
            f"even rank {least.rank}, which waits least, spends that much",
        ),
        advice=_less_communication(evidence, hosts),
    )


def _less_communication(evidence: SpeedEvidence, hosts: int) -> Iterator[str | None]:
    job, zero = evidence.job, "zero_optimization"
    counts = {*Counter(rank.host for rank in evidence.ranks).values()}
    if job.stage == 3 and hosts > 1 and len(counts) == 1 and _partition_size(job) == 1:
        partitions = ((f"{zero}.zero_hpz_partition_size", counts.pop()),)
        effect = "gathers weights within a host, with a whole copy in each"
        yield evidence.option(Options(overrides=partitions), effect)
    if job.accelerator != "cpu" and setting(job.config, zero, "overlap_comm") is False:
        overlap = ((f"{zero}.overlap_comm", True),)
        yield evidence.option(Options(overrides=overlap), "communicates while it computes")
    yield from evidence.changes("communication")
    # Stage 3 gathers weights in each pass, and stage 2 reduces gradients.
    if job.grad_accum == 1 and job.stage < 3:
        effect = "half as much communication per sample; doubles the global batch"
        options = Options(grad_accum=2)
        if job.stage == 2:
            options, effect = options | Options(stage=1), f"{effect}; needs memory for all gradients"
        yield evidence.option(options, effect)


def _partition_size(job: JobEvidence) -> int:
    return rank_groups(job.config, job.world_size).secondary


def _optimizer(evidence: SpeedEvidence) -> Iterator[SpeedLoss]:
    """The optimizer steps on the CPU."""
    if evidence.job.offload.get("optimizer") != "cpu":
        return
    seconds = evidence.usual(phases.STEPPING)
    ranks = max(1, len(evidence.ranks) // max(1, len({rank.host for rank in evidence.ranks})))
    share, facts, advice = (evidence.cores or 0) // ranks, [], evidence.changes("offload")
    if evidence.threads and share > evidence.threads:
        facts.append(f"OMP_NUM_THREADS={evidence.threads}, with {share} cores for each rank")
        advice.insert(0, f"`--env OMP_NUM_THREADS={share}`: use all cores")
    yield _takes(
        evidence,
        "optimizer-on-cpu",
        "the optimizer, which is offloaded to the CPU, takes",
        seconds,
        facts=facts,
        advice=advice,
    )


def _swapping(evidence: SpeedEvidence) -> Iterator[SpeedLoss]:
    """Ranks wait for a drive."""
    seconds = evidence.usual(phases.SWAPPING)
    yield _takes(
        evidence,
        "waiting-for-nvme",
        "waiting for NVMe takes",
        seconds,
        advice=(
            "`zlaunch nvme tune DIR`: measures the drive, and finds its best settings",
            *evidence.changes("swapping"),
        ),
    )


def _copying(evidence: SpeedEvidence) -> Iterator[SpeedLoss]:
    """Gradients and weights are copied between GPU and host."""
    if not evidence.job.offload:
        return
    seconds = evidence.usual(phases.COPYING)
    yield _takes(
        evidence,
        "offload-copies",
        "copies of offloaded gradients take",
        seconds,
        advice=evidence.changes("offload"),
    )


def _outside(evidence: SpeedEvidence) -> Iterator[SpeedLoss]:
    """Checkpoints and evaluations between the steps."""
    words = {
        phases.SAVING: ("checkpoints", "saves-often", "save less often", "save_steps"),
        phases.EVALUATING: ("evaluations", "evaluates-often", "evaluate less often", "eval_steps"),
    }
    for phase, seconds in evidence.outside.items():
        what, code, rarely, argument = words[phase]
        if evidence.job.setting == "argument":
            rarely += f", with a larger `--{argument}`"
        cause = f"{what} take {seconds / evidence.total:.0%} of the time: {brief(seconds)} for each step"
        facts = (f"a step itself takes {brief(evidence.seconds)}",)
        yield _loss(code, seconds / evidence.total, cause, facts, (rarely,))


def _own_code(evidence: SpeedEvidence) -> Iterator[SpeedLoss]:
    """The script's own code between the passes."""
    seconds = evidence.usual(phases.TRAINING)
    yield _takes(
        evidence,
        "own-code",
        "other code of the script takes",
        seconds,
        facts=("it is neither in the model nor in DeepSpeed nor in a `DataLoader`",),
        advice=("look between the passes: data made on the fly, logging, `.item()`, waiting",),
    )


def _recomputation(evidence: SpeedEvidence) -> Iterator[SpeedLoss]:
    """Activations are recomputed although there is room for them."""
    if not evidence.job.gradient_checkpointing or not evidence.unsaved or evidence.room is None:
        return
    if evidence.unsaved > evidence.room / 1.5:
        return
    seconds = evidence.usual(phases.FORWARD)
    yield _takes(
        evidence,
        "needless-recomputation",
        "the backward pass recomputes the forward pass: about",
        seconds,
        facts=(
            f"the activations would take {memory(evidence.unsaved)}; {memory(evidence.room)} were never used",
        ),
        advice=evidence.changes("recomputation"),
    )


def _small_batch(evidence: SpeedEvidence) -> Iterator[SpeedLoss]:
    """Micro-batches are too small for the device, or for what a step costs whatever its size."""
    share, tokens = evidence.flops_share, evidence.tokens
    if tokens is None or tokens >= SMALL_BATCH:
        return
    computing = (evidence.usual(phases.FORWARD) + evidence.usual(phases.BACKWARD)) / evidence.seconds
    fixed = sum(evidence.usual(part) for part in FIXED) / evidence.seconds
    cause = f"a micro-batch of {plural(tokens, 'token')} is too small"
    changes = evidence.changes("passes")
    if fixed >= MUCH_FIXED:
        fact = f"{fixed:.0%} of a step does not depend on its size: communication, optimizer, other code"
        saved = fixed * (1 - tokens / SMALL_BATCH)  # per token, with a micro-batch that is not small
        yield _loss("small-micro-batch", saved, cause, (fact,), changes)
    elif share is not None and share < FEW_FLOPS * computing:
        reached = share / computing
        fact = f"the passes reach {reached:.1%} of what the device can do"
        yield _loss("small-micro-batch", computing * (1 - reached / FEW_FLOPS), cause, (fact,), changes)


def _change(evidence: SpeedEvidence) -> Iterator[SpeedLoss]:
    """Steps become slower during the run."""
    lines = evidence.lines
    if len(lines) < 4 * SPLIT_STEPS:
        return
    at = _split(lines)
    before, after = (_typical(part) for part in (lines[:at], lines[at:]))
    if before <= 0 or after < LEAST_CHANGE * before or not _are_two_levels(lines, at):
        return
    near = _typical(lines[at : at + SPLIT_STEPS]) - _typical(lines[max(0, at - SPLIT_STEPS) : at])
    total = sum(line.seconds for line in lines)
    share = (after - before) * (len(lines) - at) / total
    text = f"{after / before:.1f} times as long as before: {brief(after)}, {brief(before)} before"
    cause = f"from step {lines[at].step} on, a step takes {text}"
    if near < (after - before) / 2:
        first, last = _typical(lines[:SPLIT_STEPS]), _typical(lines[-SPLIT_STEPS:])
        cause = f"steps become ever slower: {brief(first)} at first, {brief(last)} in the end"
    yield _loss("slower-steps", share, cause, (_grown_part(lines, at),), ())


def _typical(lines: Sequence[TimedLine]) -> float:
    return statistics.median(line.seconds for line in lines)


def _split(lines: Sequence[TimedLine]) -> int:
    """Return the first line of the second level, if the times are best described by two levels."""
    size = -(-len(lines) // MOST_BLOCKS)
    blocks = [_typical(lines[at : at + size]) for at in range(0, len(lines), size)]
    ends = range(SPLIT_STEPS, len(blocks) - SPLIT_STEPS + 1)
    end = min(ends, key=lambda end: _deviation(blocks[:end]) + _deviation(blocks[end:]))
    middle = (statistics.median(blocks[:end]) + statistics.median(blocks[end:])) / 2
    for at in range((end - 1) * size, len(lines) - SPLIT_STEPS):
        if min(lines[at].seconds, _typical(lines[at : at + SPLIT_STEPS])) > middle:
            return at
    return end * size


def _are_two_levels(lines: Sequence[TimedLine], at: int) -> bool:
    """Whether two levels describe the times much better than one: not if steps just vary."""
    times = [line.seconds for line in lines]
    return _deviation(times[:at]) + _deviation(times[at:]) < MOST_LEFT * _deviation(times)


def _deviation(values: Sequence[float]) -> float:
    """Return the sum of the distances to the median, which a few long steps hardly move."""
    middle = statistics.median(values)
    return sum(abs(value - middle) for value in values)


def _grown_part(lines: Sequence[TimedLine], at: int) -> str | None:
    """Name the part that takes longer."""
    before, after = _mean_parts(lines[:at]), _mean_parts(lines[at:])
    if not before or not after:
        return None
    part = max(after, key=lambda part: after[part] - before.get(part, 0.0))
    return f"{part_name(part)} grew from {brief(before.get(part, 0.0))} to {brief(after[part])}"


def _mean_parts(lines: Sequence[TimedLine]) -> dict[str, float]:
    sums: dict[str, float] = {}
    with_parts = [line for line in lines if line.parts]
    for line in with_parts:
        for part, seconds in line.parts.items():
            sums[part] = sums.get(part, 0.0) + seconds / len(with_parts)
    return sums


def _retries(evidence: SpeedEvidence) -> Iterator[SpeedLoss]:
    """The allocator of torch had to free its cache."""
    if evidence.allocator_retries:
        share = min(1.0, evidence.allocator_retries / max(1, evidence.num_steps))  # of the steps
        cause = f"GPU memory was full {plural(evidence.allocator_retries, 'time')}: torch freed its cache"
        yield _loss(
            "allocator-retries",
            share,
            f"{cause} and waited for the GPU",
            (
                f"`num_alloc_retries` of torch, in {plural(evidence.num_steps, 'step')}",
                "how long that took was not measured",
            ),
            ("`--env PYTORCH_ALLOC_CONF=expandable_segments:True`, or use less memory: `zlaunch plan`",),
        )


CHECKS: Final[Sequence[Callable[[SpeedEvidence], Iterator[SpeedLoss]]]] = (
    _data,
    _slow_rank,
    _communication,
    _optimizer,
    _swapping,
    _copying,
    _outside,
    _own_code,
    _recomputation,
    _small_batch,
    _change,
    _retries,
)

PART_NAMES: Final = {phases.TRAINING: "other code", phases.COPYING: "offload copies"}
"""How parts are shown, if not by their own name."""


def part_name(part: str) -> str:
    """Name a part of a step as it is shown."""
    return PART_NAMES.get(part, part)
