"""Check that a job can go on from the checkpoint that `--resume` names."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from zlaunch.checkpoint.engine_files import engine_files
from zlaunch.checkpoint.find import ACCELERATE_TAG, TRAINER_STATE, CheckpointFolder, SavedBy
from zlaunch.checkpoint.optimizer_kind import OptimizerKind, kind_of
from zlaunch.checkpoint.pattern_path import how_to_rename
from zlaunch.checkpoint.summary import Summary
from zlaunch.checkpoint.universal import is_in_the_way, universal_folder, written_folder
from zlaunch.checkpoint.weights import how_to_take_weights
from zlaunch.dsconfig.schema.storage import LOAD_UNIVERSAL, SET_LOAD_UNIVERSAL
from zlaunch.dsconfig.text.document import dotted
from zlaunch.errors import Finding, Severity
from zlaunch.files import shown, typed
from zlaunch.job.script import ConfigInterface, Handover, Script
from zlaunch.launch.plan import LaunchPlan
from zlaunch.resume.can_resume import (
    ResumeAnswer,
    ResumeTarget,
    ResumeWay,
    can_resume,
    converted_for,
    is_round_robin,
    nearest_that_fits,
    needed_key,
    optimizer_of,
)
from zlaunch.resume.handover import VARIABLE, CheckpointReading
from zlaunch.resume.resumed_trainer import check_resumed_trainer
from zlaunch.resume.resumption import Conversion, Resumption
from zlaunch.units import plural, whole

_OPTION = "--resume"

_LOADERS = {
    ConfigInterface.DEEPSPEED: f'engine.load_checkpoint(os.environ["{VARIABLE}"])',
    ConfigInterface.ACCELERATE: f'accelerator.load_state(os.environ["{VARIABLE}"])',
    ConfigInterface.TRAINER: f'trainer.train(resume_from_checkpoint=os.environ["{VARIABLE}"])',
}


def check_resume(plan: LaunchPlan) -> list[Finding]:
    """Find every reason for which the job would not go on from its checkpoint."""
    if plan.resume is None:
        return []
    resumption = plan.resume.resumption
    if resumption.saved.problems:
        return list(_damage(resumption))
    if resumption.saved.checkpoint.saved_by is SavedBy.WEIGHTS:
        return [*_untold(resumption, plan.program), _only_weights(resumption)]
    found = [*_untold(resumption, plan.program), *_other_kind(resumption, plan), *_unfit(resumption, plan)]
    return [*found, *check_resumed_trainer(plan, plan.resume)]


def _damage(resumption: Resumption) -> Iterator[Finding]:
    folder = resumption.checkpoint.folder
    hint = f"`zlaunch checkpoint list {typed(folder.parent)}` shows which are complete"
    for one in resumption.saved.problems:
        yield Finding("bad-checkpoint", f"{shown(one.file)}: {one.message}", hint, where=_OPTION)


def _untold(resumption: Resumption, script: Script) -> Iterator[Finding]:
    """Find scripts that would begin anew, or go on from another checkpoint."""
    handover, name = resumption.handover, script.path.name
    if handover.flag:
        untold = f"{name} does not pass `resume_from_checkpoint` to its Trainer"
        hint = "write `trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)`"
    else:
        untold = f"{name} does not read `${VARIABLE}`, by which it is told the checkpoint"
        loader = _LOADERS.get(script.interface)
        hint = f"write `{loader}` in it" if loader else f"load `${VARIABLE}` in it"
    own = f"loads a checkpoint that it chooses itself ({handover.place})"
    said = {
        CheckpointReading.NO: f"{untold}, so it would begin anew",
        CheckpointReading.OWN: f"{untold}, and {own}",
        CheckpointReading.UNKNOWN: f"{untold}, unless another module does; without that, it begins anew",
    }
    if handover.reading in said:
        severity = Severity.FAILS_LATER if handover.reading is CheckpointReading.NO else Severity.ADVICE
        message = said[handover.reading]
        yield Finding("unfit-checkpoint", message, hint, where=_OPTION, severity=severity)


def _only_weights(resumption: Resumption) -> Finding:
    return _cannot(
        f"{shown(resumption.saved.checkpoint.folder)} is a model, without the state of a training",
        "name it to the script as its model, such as `-- --model DIR`",
    )


def _other_kind(resumption: Resumption, plan: LaunchPlan) -> Iterator[Finding]:
    one, program = resumption.saved.checkpoint, plan.program
    if not program.is_sure:
        return
    elif program.interface is ConfigInterface.ACCELERATE:
        yield from _not_of_accelerate(resumption, program)
    elif program.interface is not ConfigInterface.TRAINER:
        return
    elif one.saved_by is not SavedBy.TRAINER and not (resumption.directory / TRAINER_STATE).is_file():
        yield _cannot(
            f"{shown(one.folder)} was saved by {one.saved_by.value}, and a Trainer needs its own state",
            "name a directory with a `trainer_state.json`",
        )
    elif one.engine is None and program.handover is not Handover.NOT:
        yield _cannot(
            f"{shown(one.folder)} has no files of DeepSpeed's engine, which the Trainer loads",
            "save without `--save_only_model`; the weights alone are a model: `-- --model DIR`",
        )


def _not_of_accelerate(resumption: Resumption, script: Script) -> Iterator[Finding]:
    """With DeepSpeed, `load_state` calls `load_checkpoint(DIR, ACCELERATE_TAG)`, which needs its files."""
    is_certain = script.mentions("load_state") and not script.has_other_modules
    if not is_certain or script.mentions("load_checkpoint") or script.handover is Handover.NOT:
        return
    folder = resumption.directory / ACCELERATE_TAG
    is_made = resumption.conversion is not None and resumption.checkpoint.folder == folder
    if not is_made and engine_files(folder) is None:
        yield _cannot(
            f"`accelerator.load_state` loads `{ACCELERATE_TAG}`, and {shown(resumption.directory)} has none "
            "from a training with DeepSpeed",
            "name a directory that `accelerator.save_state` has written",
        )


@dataclass(frozen=True)
class CheckpointFit:
    """Whether a job can go on from its checkpoint."""

    saved: Summary
    target: ResumeTarget

    @cached_property
    def answer(self) -> ResumeAnswer:
        """How the job can use it."""
        return can_resume(self.saved, self.target)

    @cached_property
    def converted(self) -> CheckpointFolder | None:
        """The universal checkpoint beside it that the job can load."""
        return converted_for(self.saved, self.target)


def fit_of(plan: LaunchPlan) -> CheckpointFit | None:
    """Compare the plan with its checkpoint; None for a script that loads without zlaunch's ds_config."""
    program = plan.program
    is_ours = program.interface is not ConfigInterface.NONE and program.handover is not Handover.NOT
    if plan.resume is None or not is_ours:
        return None
    saved = plan.resume.resumption.saved
    stage = whole(plan.values[("zero_optimization", "stage")])
    offload = plan.values[("zero_optimization", "offload_optimizer", "device")] or "none"
    target = ResumeTarget(
        plan.topology.world_size,
        stage,
        plan.precision,
        offload,
        is_round_robin(plan.values.__getitem__),
        _optimizer(plan, offload),
    )
    return CheckpointFit(saved, target)


def _optimizer(plan: LaunchPlan, offload: str) -> OptimizerKind | None:
    """The optimizer of the ds_config, else that of `--optim`; None if the script may have another one."""
    if isinstance(plan.values[("optimizer", "type")], str):
        return optimizer_of(plan.values.__getitem__, offload)
    name = plan.args.value("optim")
    own = any(map(plan.program.mentions, ("optimizers", "create_optimizer", "optimizer_cls_and_kwargs")))
    is_trainers = plan.program.interface is ConfigInterface.TRAINER and plan.program.is_sure
    return kind_of(name) if name and is_trainers and offload == "none" and not own else None


def _unfit(resumption: Resumption, plan: LaunchPlan) -> Iterator[Finding]:
    fit = fit_of(plan)
    if fit is None or fit.saved.stage is None:  # what has no engine is judged by its kind
        return
    match fit.answer.way:
        case _ if resumption.conversion is not None:
            yield from _in_the_way(resumption.conversion, fit)
        case ResumeWay.AS_IT_IS:
            yield from _wrong_key(resumption, plan, fit)
        case ResumeWay.UNIVERSAL if hint := _convert_first(resumption, plan, fit):
            yield from _misfits(fit, hint)
        case ResumeWay.UNKNOWN:
            yield from _of_unknown_layout(resumption)
        case ResumeWay.OTHER_KEY | ResumeWay.OTHER_PATH | ResumeWay.WEIGHTS as way:
            yield from _misfits(fit, _other_way(fit, way))


def _other_way(fit: CheckpointFit, way: ResumeWay) -> str:
    """Say what makes it fit without a conversion."""
    if way is ResumeWay.OTHER_KEY:
        return f"add {needed_key(fit.target)}"
    if way is ResumeWay.OTHER_PATH:
        return how_to_rename(fit.saved.checkpoint)
    return "; or ".join(_other_jobs(fit))


def _of_unknown_layout(resumption: Resumption) -> Iterator[Finding]:
    """DeepSpeed may load what zlaunch does not know."""
    for one in resumption.saved.unknown:
        yield Finding(
            "unfit-checkpoint",
            f"{shown(one.file)}: {one.message}; whether it fits this job cannot be checked",
            where=_OPTION,
            severity=Severity.ADVICE,
        )


def _misfits(fit: CheckpointFit, hint: str) -> Iterator[Finding]:
    """Say every reason, and after the last one what to do about all of them."""
    *others, last = fit.answer.reasons
    yield from (_cannot(reason, None) for reason in others)
    yield _cannot(last, hint)


def _in_the_way(conversion: Conversion, fit: CheckpointFit) -> Iterator[Finding]:
    """Find what is where the conversion would write."""
    if is_in_the_way(fit.saved.checkpoint):
        folder, target = fit.saved.checkpoint.folder, written_folder(fit.saved.checkpoint, conversion.folder)
        yield _cannot(
            f"{shown(folder)} has to be converted, but {shown(target)} exists, and is no conversion of it",
            f"`zlaunch checkpoint reshard {typed(folder)} OUT{fit.target.options}`, then `--resume OUT "
            f"{SET_LOAD_UNIVERSAL}`; or delete {shown(target)}",
        )


def _convert_first(resumption: Resumption, plan: LaunchPlan, fit: CheckpointFit) -> str:
    """Say what to type so that the job loads a converted checkpoint; nothing if it does."""
    saved, place = fit.saved, universal_folder(fit.saved.checkpoint, None).parent
    name, without = typed(saved.checkpoint.folder), replace(fit.target, optimizer=None)
    reshard = f"`zlaunch checkpoint reshard {name}{fit.target.options}`"
    if can_resume(saved, without).way is not ResumeWay.UNIVERSAL:  # `reshard` does not know the optimizer
        reshard = f"`zlaunch checkpoint universal {name}`"
    first = [] if fit.converted is not None else [reshard]
    named = [] if place == resumption.directory else [f"`--resume {typed(place)}`"]
    key = [] if plan.loads_universal else [f"`{SET_LOAD_UNIVERSAL}`"]
    then = [f"add {' and '.join([*named, *key])}"] if named or key else []
    hint = ", then ".join([*first, *then])
    is_only_cut = saved.ranks not in (None, plan.topology.world_size) and len(fit.answer.reasons) == 1
    others = f"; or use {plural(saved.ranks or 0, 'rank')} again" if is_only_cut else ""
    return hint and f"{'add `--allow-reshard`; or convert it yourself: ' if first else ''}{hint}{others}"


def _other_jobs(fit: CheckpointFit) -> Iterator[str]:
    """Say which jobs can use a checkpoint of which this one could only use the weights."""
    other = nearest_that_fits(fit.saved, fit.target)
    if other is not None:
        changed = fit.target.changes_to(other)
        options = replace(changed, ranks=None).options.strip()
        if can_resume(fit.saved, other).way is ResumeWay.UNIVERSAL:
            options += " --allow-reshard"
        ranks = f"{changed.ranks} ranks" if changed.ranks else ""
        before = "the optimizer that saved it" if other.optimizer is not fit.target.optimizer else ""
        changes = [ranks, before, options and f"`{options.strip()}`"]
        yield f"train with {' and '.join(filter(None, changes))}"
    yield how_to_take_weights(fit.saved.checkpoint)


def _wrong_key(resumption: Resumption, plan: LaunchPlan, fit: CheckpointFit) -> Iterator[Finding]:
    """DeepSpeed looks only for universal checkpoints, or only for others."""
    name, is_universal = shown(resumption.directory), resumption.checkpoint.saved_by is SavedBy.UNIVERSAL
    if is_universal and not plan.loads_universal:
        yield _cannot(f"{name} has a universal checkpoint", f"add `{SET_LOAD_UNIVERSAL}`")
    elif plan.loads_universal and not is_universal and fit.converted is None:
        yield _cannot(
            f"`{dotted(LOAD_UNIVERSAL)}` is true, and {name} has no universal checkpoint",
            "leave the key out: DeepSpeed can load this checkpoint as it is",
        )


def _cannot(message: str, hint: str | None) -> Finding:
    return Finding("unfit-checkpoint", message, hint, where=_OPTION, severity=Severity.FAILS_LATER)
