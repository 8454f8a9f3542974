"""Whether a training can go on from a checkpoint with other ranks, another stage, precision or offload.

The rules were measured with DeepSpeed 0.19.8: tests/checkpoint/test_resume.py loads every checkpoint into
every engine.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from zlaunch.checkpoint.find import CheckpointFolder, SavedBy, find
from zlaunch.checkpoint.summary import Summary, summarize
from zlaunch.checkpoint.universal import converted


class ResumeWay(Enum):
    """What makes a checkpoint fit a job."""

    AS_IT_IS = "as it is"
    UNIVERSAL = "universal"
    """After a conversion with `zlaunch checkpoint reshard`."""
    WEIGHTS = "weights"
    """Only the weights can be used, after `zlaunch checkpoint export`."""
    REPAIR = "repair"
    """The checkpoint has problems."""


@dataclass(frozen=True)
class ResumeTarget:
    """The job that is to go on; None for what stays as it was."""

    ranks: int | None = None
    stage: int | None = None
    precision: str | None = None
    """bf16, fp16 or fp32."""
    offload: str | None = None
    """Device of the optimizer: none, cpu or nvme."""

    @property
    def options(self) -> str:
        """The options of `zlaunch checkpoint reshard` that describe it, each after a space."""
        named = vars(self)
        return "".join(f" --{name} {value}" for name, value in named.items() if value is not None)

    def int_steps(self, saved: Summary) -> bool | None:
        """Whether its Adam counts steps in an int, if that is not the one that has saved a checkpoint."""
        return None if self.offload in (None, saved.offload) else self.offload != "none"


@dataclass(frozen=True)
class ResumeAnswer:
    """How a checkpoint can be used by a job, and why."""

    way: ResumeWay
    reasons: tuple[str, ...] = ()


def can_resume(saved: Summary, target: ResumeTarget) -> ResumeAnswer:
    """Say whether a job can go on from a checkpoint, or what has to be done first."""
    if saved.problems:
        return ResumeAnswer(
            ResumeWay.REPAIR, tuple(f"{one.file.name}: {one.message}" for one in saved.problems)
        )
    if saved.stage is None:
        return ResumeAnswer(ResumeWay.AS_IT_IS)
    differences = list(_differences(saved, target))
    if not differences or _fits_anyway(saved, target):
        return ResumeAnswer(ResumeWay.AS_IT_IS)
    way = max((way for way, _ in differences), key=list(ResumeWay).index)
    if way is ResumeWay.UNIVERSAL and not saved.can_convert:
        way, why = ResumeWay.WEIGHTS, "it has no moments of Adam, or NVMe has them, so it cannot be converted"
        differences.append((way, why))
    return ResumeAnswer(way, tuple(reason for _, reason in differences))


def converted_for(saved: Summary, target: ResumeTarget) -> CheckpointFolder | None:
    """Find what an earlier conversion wrote beside a checkpoint, if the job can load it."""
    done = converted(saved.checkpoint)
    fits = done is not None and can_resume(summarize(done), target).way is ResumeWay.AS_IT_IS
    return done if fits else None


def _fits_anyway(saved: Summary, target: ResumeTarget) -> bool:
    """Whether it is universal: what DeepSpeed alone converts is for one kind of stage. None is for NVMe."""
    if saved.checkpoint.saved_by is not SavedBy.UNIVERSAL or target.offload == "nvme":
        return False
    stage = saved.stage if target.stage is None else target.stage
    return bool(stage) and (saved.can_convert or _layout(stage) == _layout(saved.stage))


def newest_to_resume(output_dir: Path, target: ResumeTarget, before: float = math.inf) -> Path | None:
    """Find the newest checkpoint of a Trainer, from before a step, that a job can go on from as it is."""
    found = [
        one
        for one in find(output_dir)
        if one.saved_by is SavedBy.TRAINER and one.named_step is not None and one.named_step < before
    ]
    for one in sorted(found, key=lambda one: one.named_step or 0, reverse=True):
        if can_resume(summarize(one), target).way is ResumeWay.AS_IT_IS:
            return one.folder
    return None


def _differences(saved: Summary, target: ResumeTarget) -> Iterator[tuple[ResumeWay, str]]:
    stage = saved.stage if target.stage is None else target.stage
    if _layout(stage) != _layout(saved.stage):
        yield (
            ResumeWay.UNIVERSAL if stage and saved.stage else ResumeWay.WEIGHTS,
            f"it was saved at stage {saved.stage}, and stage {stage} keeps its optimizer differently",
        )
    if not saved.stage:  # every rank has all of it
        return
    if target.ranks not in (None, saved.ranks):
        yield ResumeWay.UNIVERSAL, f"its optimizer is cut for {saved.ranks} ranks, not for {target.ranks}"
    was_bf16 = saved.dtype == "bfloat16"
    if target.precision is not None and (target.precision == "bf16") != was_bf16:
        names = ("bf16", "fp32 or fp16")
        before, after = names if was_bf16 else names[::-1]
        yield ResumeWay.UNIVERSAL, f"it was saved in {before}, and the files of {after} have other names"
    yield from _other_place(saved, target.offload)


def _other_place(saved: Summary, offload: str | None) -> Iterator[tuple[ResumeWay, str]]:
    """Offload to the CPU replaces torch's Adam by DeepSpeed's, and NVMe has files that nothing converts.

    torch's Adam takes the state of DeepSpeed's as it is: `Adam.__setstate__` makes tensors of its steps.
    """
    if offload in (None, saved.offload):
        return
    if "nvme" in (offload, saved.offload):
        yield ResumeWay.WEIGHTS, "an optimizer on NVMe is saved in files that only the same ranks can load"
    elif offload == "cpu" and not saved.has_int_steps:
        yield ResumeWay.UNIVERSAL, "torch's Adam has saved it, and offload uses DeepSpeed's Adam"


def _layout(stage: int | None) -> int:
    """Stages 1 and 2 keep the optimizer in the same way."""
    return {1: 2}.get(stage or 0, stage or 0)
