"""Whether a training can go on from a checkpoint with other ranks, another stage or another precision.

The rules were measured with DeepSpeed 0.19.8: tests/checkpoint/test_resume.py loads every checkpoint into
every engine.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from zlaunch.checkpoint.find import SavedBy, find
from zlaunch.checkpoint.summary import Summary, summarize


class ResumeWay(Enum):
    """What makes a checkpoint fit a job."""

    AS_IT_IS = "as it is"
    UNIVERSAL = "universal"
    """After a conversion with `zlaunch checkpoint universal`."""
    WEIGHTS = "weights"
    """Only the weights can be used, after `zlaunch checkpoint export`."""
    REPAIR = "repair"
    """The checkpoint has problems."""


@dataclass(frozen=True)
class ResumeTarget:
    """The job that is to go on; None for what stays as it was."""

    ranks: int | None = None
    stage: int | None = None
    is_bf16: bool | None = None


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
    if not differences:
        return ResumeAnswer(ResumeWay.AS_IT_IS)
    way = max((way for way, _ in differences), key=list(ResumeWay).index)
    if way is ResumeWay.UNIVERSAL and saved.checkpoint.saved_by is SavedBy.UNIVERSAL:
        return ResumeAnswer(ResumeWay.AS_IT_IS)
    return ResumeAnswer(way, tuple(reason for _, reason in differences))


def newest_to_resume(output_dir: Path, target: ResumeTarget) -> Path | None:
    """Find the Trainer's checkpoint with the highest step that a job can go on from as it is."""
    found = [
        one for one in find(output_dir) if one.saved_by is SavedBy.TRAINER and one.named_step is not None
    ]
    for one in sorted(found, key=lambda one: one.named_step or 0, reverse=True):
        if can_resume(summarize(one), target).way is ResumeWay.AS_IT_IS:
            return one.folder
    return None


def _differences(saved: Summary, target: ResumeTarget) -> Iterator[tuple[ResumeWay, str]]:
    stage = saved.stage if target.stage is None else target.stage
    if _layout(stage) != _layout(saved.stage):
        yield (
            ResumeWay.WEIGHTS,
            f"it was saved at stage {saved.stage}, and stage {stage} keeps its optimizer differently",
        )
    if not saved.stage:  # every rank has all of it
        return
    if target.ranks not in (None, saved.ranks):
        yield ResumeWay.UNIVERSAL, f"its optimizer is cut for {saved.ranks} ranks, not for {target.ranks}"
    was_bf16 = saved.dtype == "bfloat16"
    if target.is_bf16 not in (None, was_bf16):
        names = ("bf16", "fp32 or fp16")
        before, after = names if was_bf16 else names[::-1]
        yield ResumeWay.UNIVERSAL, f"it was saved in {before}, and the files of {after} have other names"


def _layout(stage: int | None) -> int:
    """Stages 1 and 2 keep the optimizer in the same way."""
    return {1: 2}.get(stage or 0, stage or 0)
