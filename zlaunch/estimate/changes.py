"""What can be changed about a job to save memory, or to use what is left: what to type, and what it does."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from zlaunch.config.resolve.autos import ACCUMULATION, MICRO
from zlaunch.config.resolve.resolve import ResolvedConfig
from zlaunch.config.resolve.values import Sourced
from zlaunch.dsconfig.keys.read_at import ZERO
from zlaunch.estimate.fit import Fit
from zlaunch.estimate.query import Estimate, EstimateQuery, Rejected
from zlaunch.estimate.workload import Lora
from zlaunch.job.source import Source
from zlaunch.job.spec import Offload, Stage, parse_offload
from zlaunch.units import whole

Ask = Callable[[Sequence[EstimateQuery]], Sequence[Estimate | Rejected]]

SMALL_BUCKET: Final = 50_000_000
"""Elements; a tenth of DeepSpeed's own, and enough to keep a network busy."""
USUAL_RANK: Final = 16
WORTH_SAYING: Final = 0.01
"""A change that moves less of the GPU's peak than this is left out, and one that saves less of the time."""
MOST_FASTER: Final = 3

_STAGES: Final[tuple[Stage, ...]] = (0, 1, 2, 3)


@dataclass(frozen=True)
class ConfigChange:
    """One change to a job."""

    words: str
    """What to type for it."""
    question: EstimateQuery


def memory_changes(question: EstimateQuery, settled: ResolvedConfig) -> Iterator[ConfigChange]:
    """Name what may make a job smaller, the least intrusive change first."""
    yield from _batch(question, settled)
    yield from _activations(question)
    yield from _buckets(question, settled)
    yield from _states(question, settled)
    yield from _offloads(question, settled)
    yield from _different_training(question, settled)


def _batch(question: EstimateQuery, settled: ResolvedConfig) -> Iterator[ConfigChange]:
    """Split the batch of a step into more and smaller pieces; what is learnt stays the same."""
    micro = whole(settled.values[MICRO]) or 1
    accumulated = whole(settled.values[ACCUMULATION]) or 1
    for size in dict.fromkeys((micro // 2, 1)):
        if 0 < size < micro and micro % size == 0:
            pieces = accumulated * (micro // size)
            words = f"--micro-batch {size} --grad-accum {pieces}"
            smaller = question.with_argument("per_device_train_batch_size", size, "`--micro-batch`")
            yield ConfigChange(
                words, smaller.with_argument("gradient_accumulation_steps", pieces, "`--grad-accum`")
            )


def _activations(question: EstimateQuery) -> Iterator[ConfigChange]:
    training = question.training
    if not training.activation_checkpointing:
        checkpointed = replace(training, activation_checkpointing=True)
        yield ConfigChange("--activation-checkpointing", replace(question, training=checkpointed))
    if training.attention == "eager":
        yield ConfigChange(
            "--attention sdpa", replace(question, training=replace(training, attention="sdpa"))
        )


def _buckets(question: EstimateQuery, settled: ResolvedConfig) -> Iterator[ConfigChange]:
    stage = settled.config.zero_optimization.stage
    size = whole(settled.values[ZERO, "reduce_bucket_size"]) or whole(
        settled.config.zero_optimization.reduce_bucket_size
    )
    if stage in (1, 2, 3) and size and size > SMALL_BUCKET:
        key = f"{ZERO}.reduce_bucket_size"
        overrides = (*question.job.overrides, (key, SMALL_BUCKET))
        yield ConfigChange(
            f"--set {key}={SMALL_BUCKET}", replace(question, job=replace(question.job, overrides=overrides))
        )


def _states(question: EstimateQuery, settled: ResolvedConfig) -> Iterator[ConfigChange]:
    stage = settled.config.zero_optimization.stage
    if question.given.world_size > 1:
        for higher in _STAGES:
            if isinstance(stage, int) and higher > stage:
                yield ConfigChange(
                    f"--stage {higher}", replace(question, job=replace(question.job, stage=higher))
                )


def _offloads(question: EstimateQuery, settled: ResolvedConfig) -> Iterator[ConfigChange]:
    zero = settled.config.zero_optimization
    there = {
        name: zero.offloads[f"offload_{name}"].device for name in _PARTS if f"offload_{name}" in zero.offloads
    }
    choices = {"cpu": Offload("cpu", "none")}
    if zero.stage == 3:
        choices = {"optimizer:cpu": Offload("cpu", "none"), "cpu": Offload("cpu", "cpu")}
    for words, offload in choices.items():
        more = ("optimizer" not in there) or (offload.param == "cpu" and "param" not in there)
        if more and zero.stage in (1, 2, 3) and "nvme" not in there.values():
            yield ConfigChange(
                f"--offload {words}", replace(question, job=replace(question.job, offload=offload))
            )


_PARTS: Final = ("optimizer", "param")


def _different_training(question: EstimateQuery, settled: ResolvedConfig) -> Iterator[ConfigChange]:
    """What changes what is learnt comes last."""
    training = question.training
    if settled.precision == "fp32":
        yield ConfigChange("--precision bf16", replace(question, job=replace(question.job, precision="bf16")))
    length = training.seq_len.value
    if length >= 1024:
        words = f"--seq-len {length // 2}"
        shorter = replace(training, seq_len=Sourced(length // 2, Source.option("--seq-len")))
        yield ConfigChange(words, replace(question, training=shorter))
    if training.lora is None:
        adapted = replace(training, lora=Lora(USUAL_RANK))
        yield ConfigChange(f"--lora {USUAL_RANK}", replace(question, training=adapted))


def speed_changes(question: EstimateQuery, settled: ResolvedConfig) -> Iterator[ConfigChange]:
    """Name what may make a job faster where there is memory for it: each lever the other way."""
    job, training, zero = question.job, question.training, settled.config.zero_optimization
    moved = {section.device for section in zero.offloads.values()}
    choices = {"cpu": "nvme" in moved, "optimizer:cpu": len(zero.offloads) > 1, "none": bool(moved)}
    for words in (words for words, is_less in choices.items() if is_less):
        yield ConfigChange(
            f"--offload {words}", replace(question, job=replace(job, offload=parse_offload(words)))
        )
    least = 3 if "offload_param" in zero.offloads else int(bool(moved))
    if isinstance(zero.stage, int) and zero.stage > least:
        lower = _STAGES[zero.stage - 1]
        yield ConfigChange(f"--stage {lower}", replace(question, job=replace(job, stage=lower)))
    if training.activation_checkpointing:
        kept = replace(training, activation_checkpointing=False)
        yield ConfigChange("no activation checkpointing", replace(question, training=kept))
    micro = 2 * (whole(settled.values[MICRO]) or 1)
    accumulated = whole(settled.values[ACCUMULATION]) or 1
    larger = question.with_argument("per_device_train_batch_size", micro, "`--micro-batch`")
    if accumulated % 2 == 0:
        pieces = accumulated // 2
        larger = larger.with_argument("gradient_accumulation_steps", pieces, "`--grad-accum`")
        yield ConfigChange(f"--micro-batch {micro} --grad-accum {pieces}", larger)
    elif accumulated == 1:
        yield ConfigChange(f"--micro-batch {micro}", larger)


@dataclass(frozen=True, slots=True)
class ChangeEffect:
    """What one change does; bytes, less is negative."""

    words: str
    gpu: int
    """Of tensors on the GPU of a rank."""
    host: int
    """Of a whole host."""
    pace: float | None
    """Of the time that a token takes, as a fraction of it."""
    fit: Fit
    parts: dict[str, int]
    """What fills the GPU after the change."""


def effect(words: str, before: Estimate, after: Estimate) -> ChangeEffect:
    """Compare a job with the same job after a change."""
    old, new = before.seconds_per_token, after.seconds_per_token
    pace = new / old - 1 if old and new else None
    return ChangeEffect(
        words,
        after.need.allocated - before.need.allocated,
        after.need.host - before.need.host,
        pace,
        after.verdict.fit,
        dict(after.forecast.parts.get("gpu", {})),
    )


def try_changes(
    answer: Estimate, ask: Callable[[Sequence[EstimateQuery]], Sequence[Estimate | Rejected]]
) -> list[ChangeEffect]:
    """Pull every lever, and say what those do that leave a job that can work.

    Of a job that fits, and whose speed is known, they are pulled the other way too.
    """
    pulled = list(memory_changes(answer.question, answer.settled))
    if answer.verdict.fit is Fit.YES and answer.seconds is not None:
        pulled += speed_changes(answer.question, answer.settled)
    return [
        effect(lever.words, answer, after)
        for lever, after in zip(pulled, ask([lever.question for lever in pulled]), strict=True)
        if isinstance(after, Estimate)
    ]


def worth_saying(effects: Sequence[ChangeEffect], peak: int) -> list[ChangeEffect]:
    """Keep what saves GPU memory, and of what saves none and still fits the fastest."""
    saving = [one for one in effects if one.gpu < -WORTH_SAYING * peak]
    taking = [one for one in effects if one not in saving and one.fit is Fit.YES]
    faster = [one for one in taking if one.pace is not None and one.pace < -WORTH_SAYING]
    return [*saving, *sorted(faster, key=lambda one: one.pace or 0)[:MOST_FASTER]]


def mover(part: str, size: int, effects: Sequence[ChangeEffect]) -> tuple[str, int] | None:
    """Find the change that leaves least of a part; None if none moves it by a tenth."""
    left = [(one.parts.get(part, 0), one.words) for one in effects if one.gpu < 0]
    least = min(left, default=None)
    return (least[1], least[0]) if least is not None and least[0] < 0.9 * size else None


def words_that_fit(effects: Sequence[ChangeEffect], in_train: bool = False) -> str:
    """Name up to three changes after which a job fits, the least intrusive first; empty if none does."""
    fitting = [one.words for one in effects if one.fit is Fit.YES]
    typed = [for_train(words) for words in fitting] if in_train else fitting
    return ", or with ".join([f"`{words}`" for words in typed if words][:3])


def for_train(words: str) -> str | None:
    """Say what to type in `zlaunch train` for a lever; None for what only the script decides."""
    own, arguments = [], []
    for option in words.split(" --"):
        name, _, value = f"--{option.removeprefix('--')}".partition(" ")
        if name in _ARGUMENTS:
            arguments.append(f"{_ARGUMENTS[name]} {value}".rstrip())
        elif name in _OF_TRAIN:
            own.append(f"{name} {value}")
        else:
            return None
    return " ".join([*own, *(["--", *arguments] if arguments else [])])


_ARGUMENTS: Final = {
    "--micro-batch": "--per_device_train_batch_size",
    "--grad-accum": "--gradient_accumulation_steps",
    "--activation-checkpointing": "--activation_checkpointing",
}
_OF_TRAIN: Final = ("--stage", "--offload", "--nvme", "--set", "--precision")
