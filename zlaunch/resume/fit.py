"""Whether a job can resume from a checkpoint: with other ranks, another stage, precision or offload.

The rules were measured with DeepSpeed 0.19.8: tests/resume/test_can_resume.py loads every checkpoint into
every engine.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from zlaunch.checkpoint.find import CheckpointFolder, SavedBy
from zlaunch.checkpoint.optimizer_kind import OptimizerKind, kind_of, lacks, saved_by
from zlaunch.checkpoint.pattern_path import is_misread
from zlaunch.checkpoint.summary import Summary, summarize
from zlaunch.checkpoint.universal import converted
from zlaunch.checkpoint.universal_files import has_int_steps
from zlaunch.dsconfig.schema.section import ZERO
from zlaunch.dsconfig.text.document import KeyPath
from zlaunch.files import typed
from zlaunch.frozen import dataclass
from zlaunch.job.script import ConfigInterface
from zlaunch.job.spec import Offload
from zlaunch.resume.training import PlannedTraining
from zlaunch.units import plural, whole

ROUND_ROBIN = "zero_optimization.round_robin_gradients"

_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}

Config = Callable[[KeyPath], object]
"""The value of a ds_config at a path; None if it is absent."""


class ResumeWay(Enum):
    """What makes a checkpoint fit a job."""

    AS_IT_IS = "as it is"
    UNIVERSAL = "universal"
    """A conversion with `zlaunch checkpoint reshard`."""
    WEIGHTS = "weights"
    """Nothing: only the weights can be used, after `zlaunch checkpoint export`."""
    OTHER_KEY = "other key"
    """Another value of `zero_optimization.round_robin_gradients`."""
    REPAIR = "repair"
    """The checkpoint has problems."""
    UNKNOWN = "unknown"
    """It has files of a layout that zlaunch does not know."""
    OTHER_PATH = "other path"
    """DeepSpeed does not find its files by this path."""


class ResumeMismatch(NamedTuple):
    """An option of a job that differs from the training that saved a checkpoint."""

    way: ResumeWay
    """What makes it fit."""
    option: str
    """The member of ResumeTarget."""
    reason: str


@dataclass(frozen=True)
class ResumeTarget:
    """The job that resumes; None for an option that stays as it was."""

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
        named = {**vars(self), "offload": _device(self.offload, self.stage)}
        names = ("ranks", "stage", "precision", "offload")
        return "".join(f" --{name} {named[name]}" for name in names if named[name] is not None)

    def changes_to(self, other: "ResumeTarget") -> "ResumeTarget":
        """The options of another job that differ from this one."""
        mine = vars(self)
        return ResumeTarget(**{name: value for name, value in vars(other).items() if value != mine[name]})


def target_of_config(
    config: Config, ranks: int | None, precision: str | None, offload: str | None
) -> ResumeTarget:
    """Describe a job by its ds_config, its ranks, and the precision and offload that it trains with."""
    stage = whole(config((ZERO, "stage")))
    return ResumeTarget(
        ranks, stage, precision, offload, _is_round_robin(config), _optimizer_of(config, offload)
    )


def target_of(training: PlannedTraining, offload: Offload | None = None) -> ResumeTarget | None:
    """Describe a planned job, or that with other offload.

    None if its engine is not configured by the ds_config of zlaunch.
    """
    if not training.takes_ds_config:
        return None
    config, device = training.config.__getitem__, training.offload
    if offload is not None:
        device = offload.optimizer or device
    target = target_of_config(config, training.world_size, training.precision, device)
    if device != "none" or isinstance(config(("optimizer", "type")), str):
        return target
    return replace(target, optimizer=_trainers_optimizer(training))


def _is_round_robin(config: Config) -> bool | None:
    """Read `round_robin_gradients`.

    None if DeepSpeed ignores the key, as `BF16_Optimizer` does, or has the offsets of an aligned group.
    """
    is_widened = config(("data_types", "grad_accum_dtype")) is not None
    if is_widened or config((ZERO, "parameter_alignment")):
        return None
    return config((ZERO, "round_robin_gradients")) is True


def _optimizer_of(config: Config, offload: str | None) -> OptimizerKind | None:
    """Recognize the optimizer of a ds_config; None if it has none, or one that is not known.

    With offload, DeepSpeed has versions of its own, of which Adam's is known.
    """
    name = config(("optimizer", "type"))
    if not isinstance(name, str):
        return None
    kind = kind_of(name, is_deepspeeds=not config(("optimizer", "params", "torch_adam")))
    is_adam = kind in (OptimizerKind.TORCH_ADAM, OptimizerKind.DEEPSPEED_ADAM)
    return kind if is_adam or offload in (None, "none") else None


def _trainers_optimizer(training: PlannedTraining) -> OptimizerKind | None:
    """Recognize the optimizer that `--optim` names, without offload; None if the script may have another."""
    script = training.script
    name = training.args.value("optim")
    is_trainers = script.interface is ConfigInterface.TRAINER and script.is_sure
    if name is None or not is_trainers:
        return None
    may_differ = any(map(script.mentions, ("optimizers", "create_optimizer", "optimizer_cls_and_kwargs")))
    return None if may_differ else kind_of(name)


@dataclass(frozen=True)
class CheckpointFit:
    """How a job can use a checkpoint, and why not as it is."""

    saved: Summary
    target: ResumeTarget
    way: ResumeWay
    reasons: tuple[str, ...] = ()

    @property
    def is_loadable(self) -> bool:
        """Whether nothing is known that keeps the job from loading it as it is."""
        return self.way in (ResumeWay.AS_IT_IS, ResumeWay.UNKNOWN)

    @property
    def needed_key(self) -> str:
        """What to add to a job whose key would have the numbers loaded in another order."""
        return f"`--set {ROUND_ROBIN}={str(not self.target.is_round_robin).lower()}`"

    @property
    def reshard_command(self) -> str:
        """The command that converts it for the job."""
        return f"`zlaunch checkpoint reshard {typed(self.saved.checkpoint.folder)}{self.target.options}`"

    @property
    def int_steps(self) -> bool | None:
        """Whether the Adam of the job counts steps in an int; None if it is that of the checkpoint."""
        offload = self.target.offload
        return None if offload in (None, self.saved.offload) else offload != "none"

    @cached_property
    def converted(self) -> CheckpointFolder | None:
        """What an earlier conversion wrote beside the checkpoint, if the job can load it."""
        written = converted(self.saved.checkpoint)
        if written is None or can_resume(summarize(written), self.target).way is not ResumeWay.AS_IT_IS:
            return None
        needed = self.int_steps if _target_stage(self.saved, self.target) == 3 else None
        return written if needed in (None, has_int_steps(written.folder)) else None

    @property
    def nearest(self) -> "CheckpointFit | None":
        """The job most like this one that can resume, if this one can only use the weights.

        What no conversion changes is then as it was, and NVMe becomes the CPU. None if there is no such job.
        """
        saved, target = self.saved, self.target
        offload = "cpu" if saved.offload == "nvme" else saved.offload
        before = vars(ResumeTarget(saved.all_ranks, saved.stage, _PRECISIONS.get(saved.dtype or ""), offload))
        differences = list(_differences(saved, target))
        if not saved.obstacle:
            differences = [difference for difference in differences if difference.way is ResumeWay.WEIGHTS]
        other = can_resume(
            saved,
            replace(target, **{difference.option: before[difference.option] for difference in differences}),
        )
        if other.way in (ResumeWay.AS_IT_IS, ResumeWay.UNIVERSAL):
            return other
        return None if other.target == target else other.nearest


def can_resume(saved: Summary, target: ResumeTarget) -> CheckpointFit:
    """Decide whether a job can resume from a checkpoint, or what makes it fit."""
    if (fit := _in_any_job(saved, target)) is not None:
        return fit
    differences = list(_differences(saved, target))
    if not differences or _fits_anyway(saved, target):
        return _in_order(CheckpointFit(saved, target, ResumeWay.AS_IT_IS))
    way = max((difference.way for difference in differences), key=list(ResumeWay).index)
    reasons = tuple(difference.reason for difference in differences)
    if way is ResumeWay.UNIVERSAL and saved.obstacle:
        return CheckpointFit(saved, target, ResumeWay.WEIGHTS, (*reasons, saved.obstacle))
    return _in_order(CheckpointFit(saved, target, way, reasons))


def _in_order(fit: CheckpointFit) -> CheckpointFit:
    """Replace the answer if DeepSpeed would load the numbers of some parameters into others.

    It loads a universal checkpoint in the order of the model (`_link_all_hp_params` in
    runtime/zero/stage_1_and_2.py of 0.19.8), and others in that in which they were saved.
    """
    saved, target = fit.saved, fit.target
    ranks = (target.ranks or saved.all_ranks or 1) // (saved.model_ranks or 1)
    is_cut = _target_stage(saved, target) in (1, 2) and saved.largest_group > ranks > 1
    if not is_cut or target.is_round_robin is None or fit.way is ResumeWay.WEIGHTS:
        return fit
    if fit.way is ResumeWay.UNIVERSAL or saved.checkpoint.saved_by is SavedBy.UNIVERSAL:
        if not target.is_round_robin:
            return fit
        reason = f"DeepSpeed loads a universal checkpoint in the wrong order with `{ROUND_ROBIN}`"
    else:
        if saved.is_dealt_out in (None, target.is_round_robin):
            return fit
        how = "with" if saved.is_dealt_out else "without"
        reason = f"it was saved {how} `{ROUND_ROBIN}`, so its optimizer has another order"
    return replace(fit, way=ResumeWay.OTHER_KEY, reasons=(*fit.reasons, reason))


def _in_any_job(saved: Summary, target: ResumeTarget) -> CheckpointFit | None:
    """Decide what is certain without a comparison."""

    def fit(way: ResumeWay, *reasons: str) -> CheckpointFit:
        return CheckpointFit(saved, target, way, reasons)

    if saved.obstructions:
        return fit(
            ResumeWay.REPAIR, *(f"{problem.file.name}: {problem.message}" for problem in saved.obstructions)
        )
    if unknown := [problem for problem in saved.unknown if not problem.of_model]:
        return fit(ResumeWay.UNKNOWN, *(f"{problem.file.name}: {problem.message}" for problem in unknown))
    if saved.stage is None:
        return _without_engine(saved, target)
    if saved.cannot_load is not None:
        return fit(ResumeWay.WEIGHTS, saved.cannot_load)
    if is_misread(saved.checkpoint):
        return fit(
            ResumeWay.OTHER_PATH, "DeepSpeed takes its path for a pattern, and finds other files, or none"
        )
    return None


def _without_engine(saved: Summary, target: ResumeTarget) -> CheckpointFit:
    match saved.checkpoint.saved_by:
        case SavedBy.WEIGHTS:
            reason = "it is a model, without the state of a training"
        case SavedBy.TRAINER:
            reason = "it has no files of DeepSpeed's engine, which a Trainer with DeepSpeed loads"
        case _:
            return CheckpointFit(saved, target, ResumeWay.AS_IT_IS)
    return CheckpointFit(saved, target, ResumeWay.WEIGHTS, (reason,))


def _fits_anyway(saved: Summary, target: ResumeTarget) -> bool:
    """Whether a universal checkpoint fits: what DeepSpeed alone converts is for one kind of stage.

    None fits an optimizer on NVMe.
    """
    stage = _target_stage(saved, target)
    is_universal = saved.checkpoint.saved_by is SavedBy.UNIVERSAL
    if not is_universal or not stage or _device(target.offload, stage) == "nvme":
        return False
    return saved.fits_all_stages or _layout(stage) == _layout(saved.stage)


def _differences(saved: Summary, target: ResumeTarget) -> Iterator[ResumeMismatch]:
    stage = _target_stage(saved, target)
    yield from _other_stage(saved, stage)
    if not saved.stage:  # every rank has the whole optimizer
        return
    if target.ranks not in (None, saved.all_ranks):
        reason = (
            f"its optimizer is partitioned for {plural(saved.all_ranks or 0, 'rank')}, not for {target.ranks}"
        )
        yield ResumeMismatch(ResumeWay.UNIVERSAL, "ranks", reason)
    yield from _other_precision(saved, target.precision)
    elsewhere = list(_other_device(saved, _device(target.offload or saved.offload, stage)))
    yield from elsewhere or _other_optimizer(saved, target.optimizer)


def _other_stage(saved: Summary, stage: int | None) -> Iterator[ResumeMismatch]:
    if stage == 3 and saved.has_experts:
        reason = "DeepSpeed does not train its own MoE layer at stage 3"
        yield ResumeMismatch(ResumeWay.WEIGHTS, "stage", reason)
    elif _layout(stage) != _layout(saved.stage):
        way = ResumeWay.UNIVERSAL if stage and saved.stage else ResumeWay.WEIGHTS
        reason = f"it was saved at stage {saved.stage}, and stage {stage} keeps its optimizer differently"
        yield ResumeMismatch(way, "stage", reason)


def _other_precision(saved: Summary, precision: str | None) -> Iterator[ResumeMismatch]:
    if precision is None or saved.is_bf16 in (None, precision == "bf16"):
        return
    before, after = ("bf16", "fp32 or fp16") if saved.is_bf16 else ("fp32 or fp16", "bf16")
    reason = f"it was saved in {before}, and the files of {after} have other names"
    yield ResumeMismatch(ResumeWay.UNIVERSAL, "precision", reason)


def _other_optimizer(saved: Summary, optimizer: OptimizerKind | None) -> Iterator[ResumeMismatch]:
    """With a universal checkpoint, the optimizer keeps its own settings; the moments are those of Adam."""
    if optimizer is None or not (lacking := lacks(optimizer, saved.settings)):
        return
    is_adams = optimizer is OptimizerKind.DEEPSPEED_ADAM and "betas" in saved.settings
    way = ResumeWay.UNIVERSAL if is_adams else ResumeWay.WEIGHTS
    names = " and ".join(f"`{name}`" for name in lacking)
    reason = f"{saved_by(saved.settings)} saved it, without {names}, which {optimizer.value} needs"
    yield ResumeMismatch(way, "optimizer", reason)


def _other_device(saved: Summary, offload: str | None) -> Iterator[ResumeMismatch]:
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
        reason = "torch's Adam saved it, and offload uses DeepSpeed's Adam"
        yield ResumeMismatch(ResumeWay.UNIVERSAL, "offload", reason)


def _target_stage(saved: Summary, target: ResumeTarget) -> int | None:
    return saved.stage if target.stage is None else target.stage


def _device(offload: str | None, stage: int | None) -> str | None:
    """Where the optimizer is: at stages 1 and 2, DeepSpeed takes NVMe for the CPU."""
    return "cpu" if offload == "nvme" and stage in (1, 2) else offload


def _layout(stage: int | None) -> int:
    """Stages 1 and 2 keep the optimizer in the same way."""
    return {1: 2}.get(stage or 0, stage or 0)
