"""Check that a job can resume from the checkpoint that `--resume` names, and that its script loads it."""

from collections.abc import Iterator
from dataclasses import replace

from zlaunch.checkpoint.engine_files import engine_files
from zlaunch.checkpoint.find import ACCELERATE_TAG, TRAINER_STATE, SavedBy, trainer_state
from zlaunch.checkpoint.pattern_path import how_to_rename
from zlaunch.checkpoint.universal import is_in_the_way, universal_folder, written_folder
from zlaunch.checkpoint.weights import how_to_take_weights
from zlaunch.dsconfig.schema.storage import LOAD_UNIVERSAL, SET_LOAD_UNIVERSAL, WRITER
from zlaunch.dsconfig.text.document import dotted
from zlaunch.errors import Finding, Severity
from zlaunch.files import shown, typed
from zlaunch.job.script import ConfigInterface, Handover, Script
from zlaunch.job.stack import FORCED_LOAD
from zlaunch.resume.fit import CheckpointFit, ResumeWay, can_resume, target_of
from zlaunch.resume.handover import VARIABLE, CheckpointReading, Conversion, Resumption
from zlaunch.resume.resumed_data import DataPosition
from zlaunch.resume.save_plan import number, steps_of, total_steps
from zlaunch.resume.training import PlannedTraining
from zlaunch.units import plural

_LOADERS = {
    ConfigInterface.DEEPSPEED: f'engine.load_checkpoint(os.environ["{VARIABLE}"])',
    ConfigInterface.ACCELERATE: f'accelerator.load_state(os.environ["{VARIABLE}"])',
    ConfigInterface.TRAINER: f'trainer.train(resume_from_checkpoint=os.environ["{VARIABLE}"])',
}


def check_resume(training: PlannedTraining) -> Iterator[Finding]:
    """Find every reason for which the job would not resume from its checkpoint, and what surprises then."""
    position = training.data_position
    if position is None:
        return
    for finding in _findings(training, position):
        yield replace(finding, where=position.resumption.option)


def _findings(training: PlannedTraining, position: DataPosition) -> Iterator[Finding]:
    resumption = position.resumption
    if resumption.saved.obstructions:
        yield from _damage(resumption)
        if resumption.saved.checkpoint.engine is None:
            yield from _other_kind(resumption, training.script)
        return
    yield from _not_loaded(resumption, training.script)
    if resumption.saved.checkpoint.saved_by is SavedBy.WEIGHTS:
        yield _only_weights(resumption)
        return
    yield from _other_kind(resumption, training.script)
    yield from _unfit(resumption, training)
    yield from _refused_by_torch(resumption, training)
    if position.is_trainer:
        yield from _kept_arguments(training, position)
        yield from _nothing_to_train(training, resumption)


def refused_by_script(resumption: Resumption, script: Script) -> list[Finding]:
    """Find why a job with this script is refused to resume, whatever else it asks for."""
    findings = list(_not_loaded(resumption, script))
    if resumption.saved.checkpoint.saved_by is SavedBy.WEIGHTS:
        findings.append(_only_weights(resumption))
    else:
        findings += _other_kind(resumption, script)
    return [finding for finding in findings if finding.is_refused]


def _damage(resumption: Resumption) -> Iterator[Finding]:
    folder = resumption.checkpoint.folder
    hint = f"`zlaunch checkpoint list {typed(folder.parent)}` shows which are complete"
    for problem in resumption.saved.obstructions:
        yield Finding("bad-checkpoint", f"{shown(problem.file)}: {problem.message}", hint)


def _not_loaded(resumption: Resumption, script: Script) -> Iterator[Finding]:
    """Find scripts that would restart at step 0, or resume from another checkpoint."""
    handover = resumption.handover
    if handover.flag:
        ignores = f"{script.path.name} does not pass `resume_from_checkpoint` to its Trainer"
        hint = "write `trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)`"
    else:
        ignores = f"{script.path.name} ignores `${VARIABLE}`"
        loader = _LOADERS.get(script.interface)
        hint = f"write `{loader}` in it" if loader else f"load `${VARIABLE}` in it"
    match handover.reading:
        case CheckpointReading.NO:
            yield _cannot(f"{ignores}: training would restart at step 0", hint)
        case CheckpointReading.OWN:
            yield _advise("unfit-checkpoint", f"{ignores}: it loads its own choice ({handover.place})", hint)
        case CheckpointReading.UNKNOWN:
            message = f"{ignores}: training restarts at step 0, unless another module loads the checkpoint"
            yield _advise("unfit-checkpoint", message, hint)


def _only_weights(resumption: Resumption) -> Finding:
    return _cannot(
        f"{shown(resumption.saved.checkpoint.folder)} is a model, without the state of a training",
        "name it to the script as its model, such as `-- --model DIR`",
    )


def _other_kind(resumption: Resumption, script: Script) -> Iterator[Finding]:
    checkpoint = resumption.saved.checkpoint
    if not script.is_sure:
        return
    if script.interface is ConfigInterface.ACCELERATE:
        yield from _not_of_accelerate(resumption, script)
    if script.interface is not ConfigInterface.TRAINER:
        return
    if checkpoint.saved_by is not SavedBy.TRAINER and not (resumption.directory / TRAINER_STATE).is_file():
        yield _cannot(
            f"{shown(checkpoint.folder)} was saved by {checkpoint.saved_by.value}, and a Trainer needs its "
            "own state",
            "name a directory with a `trainer_state.json`",
        )
    elif checkpoint.engine is None and script.handover is not Handover.NOT:
        yield _cannot(
            f"{shown(checkpoint.folder)} has no files of DeepSpeed's engine, which the Trainer loads",
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


def _unfit(resumption: Resumption, training: PlannedTraining) -> Iterator[Finding]:
    target = target_of(training)
    if target is None or resumption.saved.stage is None:  # what has no engine is judged by its kind
        return
    fit = can_resume(resumption.saved, target)
    if resumption.conversion is not None:
        yield from _in_the_way(resumption.conversion, fit)
        return
    match fit.way:
        case ResumeWay.AS_IT_IS:
            yield from _wrong_key(resumption, training, fit)
        case ResumeWay.UNIVERSAL:
            if hint := _convert_first(resumption, training, fit):
                yield from _misfits(fit, hint)
        case ResumeWay.UNKNOWN:
            yield from _of_unknown_layout(resumption)
        case ResumeWay.OTHER_KEY:
            yield from _misfits(fit, f"add {fit.needed_key}")
        case ResumeWay.OTHER_PATH:
            yield from _misfits(fit, how_to_rename(fit.saved.checkpoint))
        case ResumeWay.WEIGHTS:
            yield from _misfits(fit, "; or ".join(_other_jobs(fit, resumption)))


def _of_unknown_layout(resumption: Resumption) -> Iterator[Finding]:
    """DeepSpeed may load what zlaunch does not know."""
    for problem in resumption.saved.unknown:
        message = f"{shown(problem.file)}: {problem.message}; whether it fits this job cannot be checked"
        yield Finding("unfit-checkpoint", message, severity=Severity.ADVICE)


def _refused_by_torch(resumption: Resumption, training: PlannedTraining) -> Iterator[Finding]:
    """With a checkpoint writer, the engine loads its optimizer without saying which classes it takes."""
    if resumption.saved.stage and training.has_writer and training.refuses_classes:
        yield _cannot(
            f"with `{dotted(WRITER)}`, DeepSpeed cannot load checkpoints: torch 2.6 and newer refuses its "
            "classes",
            f"leave `{dotted(WRITER)}` out; or add `--env {FORCED_LOAD}=1` if you trust the checkpoint",
        )


def _misfits(fit: CheckpointFit, hint: str) -> Iterator[Finding]:
    *others, last = fit.reasons
    yield from (_cannot(reason, None) for reason in others)
    yield _cannot(last, hint)


def _in_the_way(conversion: Conversion, fit: CheckpointFit) -> Iterator[Finding]:
    checkpoint = fit.saved.checkpoint
    if is_in_the_way(checkpoint):
        folder, target = checkpoint.folder, written_folder(checkpoint, conversion.folder)
        yield _cannot(
            f"{shown(folder)} has to be converted, but {shown(target)} exists and is not a conversion of it",
            f"`zlaunch checkpoint reshard {typed(folder)} OUT{fit.target.options}`, then `--resume OUT "
            f"{SET_LOAD_UNIVERSAL}`; or delete {shown(target)}",
        )


def _convert_first(resumption: Resumption, training: PlannedTraining, fit: CheckpointFit) -> str:
    saved, steps, options = fit.saved, [], []
    if fit.converted is None:
        add = f"add `{resumption.reshard_option}`"
        if resumption.is_typed:
            add = f"write `{resumption.reshard_option}` in place of `{resumption.option}`"
        steps.append(f"{add}; or convert it yourself: {_conversion(fit)}")
    place = universal_folder(saved.checkpoint, None).parent
    if place != resumption.directory:
        options.append(f"`--resume {typed(place)}`")
    if not training.loads_universal:
        options.append(f"`{SET_LOAD_UNIVERSAL}`")
    if options:
        steps.append(f"add {' and '.join(options)}")
    if not steps:
        return ""
    hint = ", then ".join(steps)
    if saved.ranks not in (None, training.world_size) and len(fit.reasons) == 1:
        hint += f"; or use {plural(saved.ranks or 0, 'rank')} again"
    return hint


def _conversion(fit: CheckpointFit) -> str:
    # `reshard` does not know the optimizer of the job.
    without = can_resume(fit.saved, replace(fit.target, optimizer=None))
    if without.way is ResumeWay.UNIVERSAL:
        return fit.reshard_command
    return f"`zlaunch checkpoint universal {typed(fit.saved.checkpoint.folder)}`"


def _other_jobs(fit: CheckpointFit, resumption: Resumption) -> Iterator[str]:
    if (nearest := fit.nearest) is not None:
        changed, changes = fit.target.changes_to(nearest.target), []
        options = replace(changed, ranks=None).options
        if nearest.way is ResumeWay.UNIVERSAL:
            options += f" {resumption.reshard_option}"
        if changed.ranks:
            changes.append(f"{changed.ranks} ranks")
        if nearest.target.optimizer is not fit.target.optimizer:
            changes.append("the optimizer that saved it")
        if options:
            changes.append(f"`{options.strip()}`")
        yield f"train with {' and '.join(changes)}"
    yield how_to_take_weights(fit.saved.checkpoint)


def _wrong_key(resumption: Resumption, training: PlannedTraining, fit: CheckpointFit) -> Iterator[Finding]:
    """DeepSpeed looks only for universal checkpoints, or only for others."""
    name, is_universal = shown(resumption.directory), resumption.checkpoint.saved_by is SavedBy.UNIVERSAL
    if is_universal and not training.loads_universal:
        yield _cannot(f"{name} has a universal checkpoint", f"add `{SET_LOAD_UNIVERSAL}`")
    elif training.loads_universal and not is_universal and fit.converted is None:
        yield _cannot(
            f"`{dotted(LOAD_UNIVERSAL)}` is true, and {name} has no universal checkpoint",
            "leave the key out: DeepSpeed can load this checkpoint as it is",
        )


def _kept_arguments(training: PlannedTraining, position: DataPosition) -> Iterator[Finding]:
    total = total_steps(training.script, training.args)
    for name, kept in position.kept_arguments.items():
        given = training.args.value(name)
        if steps_of(given, total) not in (None, kept):
            yield _advise(
                "kept-argument",
                f"`--{name} {given}` has no effect: the Trainer keeps the `{name}` of the checkpoint, "
                f"which is {kept}",
                f"change `{name}` in {typed(position.resumption.directory / TRAINER_STATE)}",
            )


def _nothing_to_train(training: PlannedTraining, resumption: Resumption) -> Iterator[Finding]:
    """A Trainer looks whether it is at its end after each step, and so may take one beyond it."""
    script, args = training.script, training.args
    unit, name = "step", "max_steps"
    end: float | None = total_steps(script, args)
    reached: float | None = resumption.saved.step
    if end is None and script.said(args, name, "") is not None:  # the epochs end it
        unit, name = "epoch", "num_train_epochs"
        end = number(script.said(args, name, "3"))
        reached = trainer_state(resumption.directory).get("epoch")
    if end is not None and isinstance(reached, int | float) and reached >= end:
        yield _advise(
            "nothing-to-train",
            f"the checkpoint is at {unit} {reached:g}, and `--{name}` ends the training at {end:g}: with the "
            "same data, the Trainer takes at most one more step",
            f"raise `--{name}`",
        )


def _cannot(message: str, hint: str | None) -> Finding:
    return Finding("unfit-checkpoint", message, hint, severity=Severity.FAILS_LATER)


def _advise(code: str, message: str, hint: str) -> Finding:
    return Finding(code, message, hint, severity=Severity.ADVICE)
