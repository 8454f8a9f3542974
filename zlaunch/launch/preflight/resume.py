"""Check that a job can go on from the checkpoint that `--resume` names."""

from collections.abc import Iterator
from dataclasses import dataclass

from zlaunch.checkpoint.find import TRAINER_STATE, SavedBy
from zlaunch.checkpoint.resume import ResumeAnswer, ResumeTarget, ResumeWay, can_resume, converted_for
from zlaunch.checkpoint.universal import universal_folder
from zlaunch.errors import Finding, Severity
from zlaunch.files import shown, typed
from zlaunch.job.script import ConfigInterface, Handover, Script
from zlaunch.launch.plan import LaunchPlan
from zlaunch.launch.resume import TAG_VARIABLE, VARIABLE, Resumption
from zlaunch.units import whole

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
    return [*_untold(resumption, plan.program), *_other_kind(resumption, plan), *_unfit(resumption, plan)]


def _damage(resumption: Resumption) -> Iterator[Finding]:
    folder = resumption.checkpoint.folder
    hint = f"`zlaunch checkpoint list {typed(folder.parent)}` shows which are complete"
    for one in resumption.saved.problems:
        yield Finding("bad-checkpoint", f"{shown(one.file)}: {one.message}", hint, where=_OPTION)


def _untold(resumption: Resumption, script: Script) -> Iterator[Finding]:
    """Find scripts that would begin anew without a word."""
    if not resumption.is_read:
        certain = resumption.is_certain
        name = script.path.name
        if resumption.flag:
            said = f"{name} does not pass `resume_from_checkpoint` to its Trainer"
            hint = "write `trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)`"
        else:
            said = f"{name} does not read `${VARIABLE}`, by which it is told the checkpoint"
            loader = _LOADERS.get(script.interface)
            hint = f"write `{loader}` in it" if loader else f"load `${VARIABLE}` in it"
        so = "so it would begin anew" if certain else "as far as its source shows; else it begins anew"
        yield Finding(
            "unfit-checkpoint",
            f"{said}, {so}",
            hint,
            where=_OPTION,
            severity=Severity.FAILS_LATER if certain else Severity.ADVICE,
        )
    if resumption.loads_latest and not resumption.is_latest:
        tag, latest = resumption.checkpoint.tag, resumption.directory / "latest"
        yield _cannot(
            f"the script loads the checkpoint that {shown(latest)} names, which is not `{tag}`",
            f"`echo {tag} > {typed(latest)}`, or read `${TAG_VARIABLE}` in the script",
        )


def _other_kind(resumption: Resumption, plan: LaunchPlan) -> Iterator[Finding]:
    one, program = resumption.checkpoint, plan.program
    if one.saved_by is SavedBy.WEIGHTS:
        yield _cannot(
            f"{shown(one.folder)} is a model, without the state of a training",
            "name it to the script as its model, such as `-- --model DIR`",
        )
    elif program.interface is not ConfigInterface.TRAINER or not program.is_sure:
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


@dataclass(frozen=True)
class CheckpointFit:
    """Whether a job can go on from its checkpoint."""

    target: ResumeTarget
    answer: ResumeAnswer
    is_converted: bool
    """Whether there is a universal checkpoint beside it that the job can load."""
    loads_universal: bool
    """Whether DeepSpeed looks for that."""


def fit_of(plan: LaunchPlan) -> CheckpointFit | None:
    """Compare the plan with its checkpoint; None for a script that loads without zlaunch's ds_config."""
    program = plan.program
    is_ours = program.interface is not ConfigInterface.NONE and program.handover is not Handover.NOT
    if plan.resume is None or not is_ours:
        return None
    saved = plan.resume.resumption.saved
    stage = whole(plan.values[("zero_optimization", "stage")])
    offload = plan.values[("zero_optimization", "offload_optimizer", "device")] or "none"
    target = ResumeTarget(plan.topology.world_size, stage, plan.precision, offload)
    is_converted = converted_for(saved, target) is not None
    loads_universal = plan.values[("checkpoint", "load_universal")] is True
    return CheckpointFit(target, can_resume(saved, target), is_converted, loads_universal)


def _unfit(resumption: Resumption, plan: LaunchPlan) -> Iterator[Finding]:
    fit, saved = fit_of(plan), resumption.saved
    if fit is None or resumption.is_to_convert:
        return
    folder, hint = saved.checkpoint.folder, ""
    answer, is_converted, loads_universal = fit.answer, fit.is_converted, fit.loads_universal
    if answer.way is ResumeWay.UNIVERSAL and not (is_converted and loads_universal):
        place = universal_folder(saved.checkpoint, None).parent
        first = [] if is_converted else [f"`zlaunch checkpoint reshard {typed(folder)}{fit.target.options}`"]
        named = [] if place == resumption.directory else [f"`--resume {typed(place)}`"]
        key = [] if loads_universal else ["`--set checkpoint.load_universal=true`"]
        then = " and ".join([*named, *key])
        hint = ", then ".join([*first, *([f"add {then}"] if then else [])])
        hint = f"add `--allow-reshard`, or {hint}" if first else hint
        if saved.ranks is not None and saved.ranks != plan.topology.world_size:
            hint += f"; or use {saved.ranks} ranks again"
    elif answer.way is ResumeWay.AS_IT_IS:
        yield from _wrong_key(resumption, loads_universal, is_converted)
    elif answer.way is ResumeWay.WEIGHTS:
        hint = (
            f"`--stage {saved.stage}`; or `zlaunch checkpoint export {typed(folder)} OUT`, and begin anew "
            "from the model OUT"
        )
    if hint:
        for reason in answer.reasons:
            yield _cannot(reason, hint)


def _wrong_key(resumption: Resumption, loads_universal: bool, is_converted: bool) -> Iterator[Finding]:
    """DeepSpeed looks only for universal checkpoints, or only for others."""
    name = shown(resumption.directory)
    if resumption.checkpoint.saved_by is SavedBy.UNIVERSAL and not loads_universal:
        yield _cannot(f"{name} has a universal checkpoint", "add `--set checkpoint.load_universal=true`")
    elif loads_universal and not is_converted:
        yield _cannot(
            f"`checkpoint.load_universal` is true, and {name} has no universal checkpoint",
            "leave the key out: DeepSpeed can load this checkpoint as it is",
        )


def _cannot(message: str, hint: str) -> Finding:
    return Finding("unfit-checkpoint", message, hint, where=_OPTION, severity=Severity.FAILS_LATER)
