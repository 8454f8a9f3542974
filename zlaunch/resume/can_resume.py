"""Whether a training can go on from a checkpoint with other ranks, another stage, precision or offload.

The rules were measured with DeepSpeed 0.19.8: tests/resume/test_can_resume.py loads every checkpoint into
every engine.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from zlaunch.checkpoint.find import CheckpointFolder, SavedBy
from zlaunch.checkpoint.optimizer_kind import OptimizerKind, kind_of, lacks, saved_by
from zlaunch.checkpoint.pattern_path import is_misread
from zlaunch.checkpoint.summary import Summary, summarize
from zlaunch.checkpoint.universal import converted
from zlaunch.checkpoint.universal_files import has_int_steps
from zlaunch.dsconfig.text.document import KeyPath
from zlaunch.units import plural


class ResumeWay(Enum):
    """What makes a checkpoint fit a job."""

    AS_IT_IS = "as it is"
    UNIVERSAL = "universal"
    """After a conversion with `zlaunch checkpoint reshard`."""
    WEIGHTS = "weights"
    """Only the weights can be used, after `zlaunch checkpoint export`."""
    OTHER_KEY = "other key"
    """With another value of `zero_optimization.round_robin_gradients`."""
    REPAIR = "repair"
    """The checkpoint has problems."""
    UNKNOWN = "unknown"
    """It has files of a layout that zlaunch does not know, so it cannot say."""
    OTHER_PATH = "other path"
    """DeepSpeed does not find its files by this path."""


ROUND_ROBIN = "zero_optimization.round_robin_gradients"

_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


class ResumeMismatch(NamedTuple):
    """What of a job is not as it was when a checkpoint was saved."""

    way: ResumeWay
    """What makes it fit."""
    option: str
    """The member of ResumeTarget."""
    reason: str


@dataclass(frozen=True)
class ResumeTarget:
    """The job that is to go on; None for what stays as it was."""

    ranks: int | None = None
    stage: int | None = None
    precision: str | None = None
    """bf16, fp16 or fp32."""
    offload: str | None = None
    """Device of the optimizer: none, cpu or nvme."""
    is_round_robin: bool | None = None
    """Whether `round_robin_gradients` deals the parameters out to the ranks, at stages 1 and 2."""
    optimizer: OptimizerKind | None = None

    @property
    def options(self) -> str:
        """The options of `zlaunch checkpoint reshard` that describe it, each after a space."""
        named = {**vars(self), "offload": _place(self.offload, self.stage)}
        names = ("ranks", "stage", "precision", "offload")
        return "".join(f" --{name} {named[name]}" for name in names if named[name] is not None)

    def changes_to(self, other: "ResumeTarget") -> "ResumeTarget":
        """What of another job is not as in this one."""
        mine = vars(self)
        return ResumeTarget(**{key: one for key, one in vars(other).items() if one != mine[key]})

    def int_steps(self, saved: Summary) -> bool | None:
        """Whether its Adam counts steps in an int, if that is not the one that has saved a checkpoint."""
        return None if self.offload in (None, saved.offload) else self.offload != "none"


def is_round_robin(config: Callable[[KeyPath], object]) -> bool | None:
    """Read `round_robin_gradients` from a ds_config, given what it has at a path.

    None if DeepSpeed ignores the key, as `BF16_Optimizer` does, or has the offsets of an aligned group.
    """
    is_widened = config(("data_types", "grad_accum_dtype")) is not None
    if is_widened or config(("zero_optimization", "parameter_alignment")):
        return None
    return config(("zero_optimization", "round_robin_gradients")) is True


def optimizer_of(config: Callable[[KeyPath], object], offload: str | None) -> OptimizerKind | None:
    """Recognize the optimizer of a ds_config; None if it has none, or one that is not known.

    With offload, DeepSpeed has versions of its own, of which Adam's is known.
    """
    name = config(("optimizer", "type"))
    if not isinstance(name, str):
        return None
    kind = kind_of(name, is_deepspeeds=not config(("optimizer", "params", "torch_adam")))
    is_adam = kind in (OptimizerKind.TORCH_ADAM, OptimizerKind.DEEPSPEED_ADAM)
    return kind if offload in (None, "none") or is_adam else None


@dataclass(frozen=True)
class ResumeAnswer:
    """How a checkpoint can be used by a job, and why."""

    way: ResumeWay
    reasons: tuple[str, ...] = ()


def can_resume(saved: Summary, target: ResumeTarget) -> ResumeAnswer:
    """Say whether a job can go on from a checkpoint, or what has to be done first."""
    if (answer := _in_any_job(saved)) is not None:
        return answer
    differences = list(_differences(saved, target))
    if not differences or _fits_anyway(saved, target):
        return _in_order(saved, target, ResumeAnswer(ResumeWay.AS_IT_IS))
    way = max((one.way for one in differences), key=list(ResumeWay).index)
    said = [one.reason for one in differences]
    if way is ResumeWay.UNIVERSAL and saved.obstacle:
        return ResumeAnswer(ResumeWay.WEIGHTS, (*said, saved.obstacle))
    return _in_order(saved, target, ResumeAnswer(way, tuple(said)))


def _in_order(saved: Summary, target: ResumeTarget, answer: ResumeAnswer) -> ResumeAnswer:
    """Replace the answer if DeepSpeed would load the numbers of some parameters into others.

    It loads a universal checkpoint in the order of the model (`_link_all_hp_params` in
    runtime/zero/stage_1_and_2.py of 0.19.8), and others in that in which they were saved.
    """
    stage = saved.stage if target.stage is None else target.stage
    is_universal = ResumeWay.UNIVERSAL is answer.way or saved.checkpoint.saved_by is SavedBy.UNIVERSAL
    ranks = (target.ranks or saved.all_ranks or 1) // (saved.model_ranks or 1)
    is_other_order = stage in (1, 2) and saved.largest_group > ranks > 1
    if not is_other_order or target.is_round_robin is None or answer.way is ResumeWay.WEIGHTS:
        return answer
    if is_universal and target.is_round_robin:
        reason = f"DeepSpeed loads a universal checkpoint in the wrong order with `{ROUND_ROBIN}`"
    elif not is_universal and saved.is_dealt_out is not None and saved.is_dealt_out != target.is_round_robin:
        how = "with" if saved.is_dealt_out else "without"
        reason = f"it was saved {how} `{ROUND_ROBIN}`, by which its optimizer has another order"
    else:
        return answer
    return ResumeAnswer(ResumeWay.OTHER_KEY, (*answer.reasons, reason))


def needed_key(target: ResumeTarget) -> str:
    """Say what to add to a job whose key would have the numbers loaded in another order."""
    return f"`--set {ROUND_ROBIN}={str(not target.is_round_robin).lower()}`"


def _in_any_job(saved: Summary) -> ResumeAnswer | None:
    """Say what is certain without a comparison."""
    for way, found in ((ResumeWay.REPAIR, saved.problems), (ResumeWay.UNKNOWN, saved.unknown)):
        if found:
            return ResumeAnswer(way, tuple(f"{one.file.name}: {one.message}" for one in found))
    if saved.stage is None:
        return _without_engine(saved)
    if saved.cannot_load is not None:
        return ResumeAnswer(ResumeWay.WEIGHTS, (saved.cannot_load,))
    if is_misread(saved.checkpoint):
        reason = "DeepSpeed takes its path for a pattern, by which it finds other files, or none"
        return ResumeAnswer(ResumeWay.OTHER_PATH, (reason,))
    return None


def _without_engine(saved: Summary) -> ResumeAnswer:
    if saved.checkpoint.saved_by is SavedBy.WEIGHTS:
        return ResumeAnswer(ResumeWay.WEIGHTS, ("it is a model, without the state of a training",))
    if saved.checkpoint.saved_by is SavedBy.TRAINER:
        reason = "it has no files of DeepSpeed's engine, which a Trainer with DeepSpeed loads"
        return ResumeAnswer(ResumeWay.WEIGHTS, (reason,))
    return ResumeAnswer(ResumeWay.AS_IT_IS)


def nearest_that_fits(saved: Summary, target: ResumeTarget) -> ResumeTarget | None:
    """The job most like this one that can go on from a checkpoint, if this one can only use its weights.

    What no conversion changes is then as it was, and NVMe becomes the CPU. None if there is no such job.
    """
    offload = "cpu" if saved.offload == "nvme" else saved.offload
    before = ResumeTarget(saved.all_ranks, saved.stage, _PRECISIONS.get(saved.dtype or ""), offload)
    differences = list(_differences(saved, target))
    kept = [one.option for one in differences if one.way is ResumeWay.WEIGHTS or saved.obstacle]
    other = ResumeTarget(**{**vars(target), **{option: vars(before)[option] for option in kept}})
    if can_resume(saved, other).way in (ResumeWay.AS_IT_IS, ResumeWay.UNIVERSAL):
        return other
    return nearest_that_fits(saved, other) if other != target else None


def converted_for(saved: Summary, target: ResumeTarget) -> CheckpointFolder | None:
    """Find what an earlier conversion wrote beside a checkpoint, if the job can load it."""
    done, stage = converted(saved.checkpoint), saved.stage if target.stage is None else target.stage
    if done is None or can_resume(summarize(done), target).way is not ResumeWay.AS_IT_IS:
        return None
    needed = target.int_steps(saved) if stage == 3 else None
    return done if needed in (None, has_int_steps(done.folder)) else None


def _fits_anyway(saved: Summary, target: ResumeTarget) -> bool:
    """Whether it is universal: what DeepSpeed alone converts is for one kind of stage. None is for NVMe."""
    stage = saved.stage if target.stage is None else target.stage
    if saved.checkpoint.saved_by is not SavedBy.UNIVERSAL or _place(target.offload, stage) == "nvme":
        return False
    return bool(stage) and (saved.fits_all_stages or _layout(stage) == _layout(saved.stage))


def _differences(saved: Summary, target: ResumeTarget) -> Iterator[ResumeMismatch]:
    stage = saved.stage if target.stage is None else target.stage
    if stage == 3 and saved.has_experts:
        reason = "DeepSpeed does not train its own MoE layer at stage 3"
        yield ResumeMismatch(ResumeWay.WEIGHTS, "stage", reason)
    elif _layout(stage) != _layout(saved.stage):
        way = ResumeWay.UNIVERSAL if stage and saved.stage else ResumeWay.WEIGHTS
        reason = f"it was saved at stage {saved.stage}, and stage {stage} keeps its optimizer differently"
        yield ResumeMismatch(way, "stage", reason)
    if not saved.stage:  # every rank has all of it
        return
    if target.ranks not in (None, saved.all_ranks):
        reason = f"its optimizer is cut for {plural(saved.all_ranks or 0, 'rank')}, not for {target.ranks}"
        yield ResumeMismatch(ResumeWay.UNIVERSAL, "ranks", reason)
    was_bf16 = saved.dtype == "bfloat16"
    if None not in (target.precision, saved.dtype) and (target.precision == "bf16") != was_bf16:
        names = ("bf16", "fp32 or fp16")
        before, after = names if was_bf16 else names[::-1]
        reason = f"it was saved in {before}, and the files of {after} have other names"
        yield ResumeMismatch(ResumeWay.UNIVERSAL, "precision", reason)
    place = list(_other_place(saved, _place(target.offload or saved.offload, stage)))
    yield from place or _other_optimizer(saved, target)


def _other_optimizer(saved: Summary, target: ResumeTarget) -> Iterator[ResumeMismatch]:
    """With a universal checkpoint, the optimizer keeps its own settings; the moments are those of Adam."""
    if target.optimizer is None or not (lacking := lacks(target.optimizer, saved.settings)):
        return
    is_adam = target.optimizer is OptimizerKind.DEEPSPEED_ADAM
    way = ResumeWay.UNIVERSAL if is_adam and "betas" in saved.settings else ResumeWay.WEIGHTS
    names = " and ".join(f"`{name}`" for name in lacking)
    reason = f"{saved_by(saved.settings)} saved it, without {names}, which {target.optimizer.value} needs"
    yield ResumeMismatch(way, "optimizer", reason)


def _place(offload: str | None, stage: int | None) -> str | None:
    """Where the optimizer is: at stages 1 and 2, DeepSpeed takes NVMe for the CPU."""
    return "cpu" if offload == "nvme" and stage in (1, 2) else offload


def _other_place(saved: Summary, offload: str | None) -> Iterator[ResumeMismatch]:
    """Offload to the CPU replaces torch's Adam by DeepSpeed's, and NVMe has files of its own.

    torch's Adam takes the state of DeepSpeed's as it is: `Adam.__setstate__` makes tensors of its steps.
    To NVMe, `load_checkpoint` copies those files, but not the steps; the first `step` then makes new moments
    (`_get_state_tensors` in runtime/swap_tensor/optimizer_utils.py), and groups below 1 MiB, which are not
    swapped, keep the weights that the script gives them.
    """
    if offload == "nvme":
        reason = "DeepSpeed loads no moments of Adam to NVMe, and not all weights"
        yield ResumeMismatch(ResumeWay.WEIGHTS, "offload", reason)
    elif saved.is_swapped:
        reason = "its optimizer was on NVMe, and DeepSpeed cannot load it from there"
        yield ResumeMismatch(ResumeWay.UNIVERSAL, "offload", reason)
    elif offload == "cpu" and offload != saved.offload and not saved.is_deepspeeds_adam:
        reason = "torch's Adam has saved it, and offload uses DeepSpeed's Adam"
        yield ResumeMismatch(ResumeWay.UNIVERSAL, "offload", reason)


def _layout(stage: int | None) -> int:
    """Stages 1 and 2 keep the optimizer in the same way."""
    return {1: 2}.get(stage or 0, stage or 0)
