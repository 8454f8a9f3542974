"""Choose the checkpoint to resume from: the one that `--resume` names, or that of the next attempt."""

from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from zlaunch.checkpoint.find import SavedBy, recognize, step_in
from zlaunch.checkpoint.summary import Summary, summarize
from zlaunch.errors import InputMissing
from zlaunch.files import shown, typed
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import RESUME, ConfigInterface, Script
from zlaunch.job.spec import JobSpec, Offload
from zlaunch.other_values import hint_for_value
from zlaunch.resume.fit import can_resume, target_of
from zlaunch.resume.handover import (
    TAG_VARIABLE,
    CheckpointHandover,
    CheckpointReading,
    Resumption,
    checkpoint_handover,
    passes_argument_unchanged,
)
from zlaunch.resume.newest import by_age, checkpoint_of, newest_complete, refuse_several
from zlaunch.resume.saved_by_run import newest_of_run, output_dir_of, resumed_of
from zlaunch.resume.training import PlannedTraining
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.run_files import RunFiles
from zlaunch.runs.store import all_runs, find_run

RESUME_LATEST = "latest"
"""The value of `--resume` for the newest complete checkpoint of this job, if there is one."""


def find_resumption(job: JobSpec, script: Script) -> Resumption | None:
    """Find the checkpoint that a job resumes from; None if it starts at step 0, as there is none yet.

    Raise InputMissing if there is no such checkpoint, WrongUsage if several directories have one.
    """
    if job.resume is None:
        return None
    saved = _latest(job, script) if job.resume == RESUME_LATEST else _checkpoint_named(job.resume)
    if saved is None:
        return None
    return Resumption(saved, checkpoint_handover(script), script.mentions(TAG_VARIABLE))


def resumption_by_argument(script: Script, args: ScriptArgs) -> Resumption | None:
    """Find the checkpoint that an argument of the script names.

    None if there is no such argument, or only the script knows what it makes of it. Raise InputMissing for a
    path, or a word such as `last`, that goes to the Trainer as it is, which knows paths only.
    """
    named, handover = script.trainer_flags(args).value(RESUME), checkpoint_handover(script)
    knows_argument = bool(handover.flag) or script.reported is not None
    if not named or not knows_argument or script.mentions("get_last_checkpoint"):
        return None
    if script.reported is not None:
        handover = replace(handover, reading=CheckpointReading.YES)
    checkpoint = recognize(Path(named).absolute())
    if checkpoint is not None:
        return Resumption(summarize(checkpoint), handover, is_typed=True)
    if not _passes_on(script, handover):
        return None
    is_unchanged = passes_argument_unchanged(script)
    if not Path(named).exists() and (is_unchanged or _is_path(named)):
        raise InputMissing(*_not_found(named, RESUME))
    if Path(named).is_dir() and is_unchanged and _has_no_checkpoint_itself(Path(named).absolute()):
        message = f"`{RESUME} {named}`: that directory is not a checkpoint"
        raise InputMissing(
            message, f"`--resume {typed(Path(named))}`, before the script, finds the newest in it"
        )
    return None


def _has_no_checkpoint_itself(folder: Path) -> bool:
    """Whether the checkpoints that a directory has are all those of a Trainer, a level below it."""
    below = by_age(folder)
    return bool(below) and all(checkpoint.saved_by is SavedBy.TRAINER for checkpoint in below)


def _is_path(name: str) -> bool:
    return "/" in name or step_in(name) is not None


def _passes_on(script: Script, handover: CheckpointHandover) -> bool:
    """Whether a script certainly hands its argument to its Trainer without a look at it."""
    looks = any(map(script.mentions, ("exists", "isdir", "is_dir")))
    is_known = script.is_sure and script.reported is None and not script.has_other_modules
    is_given = script.interface is ConfigInterface.TRAINER and handover.reading is CheckpointReading.YES
    return is_known and is_given and not looks


def no_checkpoint_yet(job: JobSpec, script: Script) -> str:
    """Say that `--resume latest` finds no checkpoint, so that a job starts at step 0."""
    folder = script.known_output_dir(job.args)
    if folder is None:
        return f"no run of {script.path.name} has a complete checkpoint yet: the training starts at step 0"
    text = f"there is no complete checkpoint in `{shown(folder)}` yet: the training starts at step 0"
    return f"{text}; {_verify(folder)}" if by_age(folder) else text


def newest_for_restart(
    training: PlannedTraining, run: Path, offload: Offload | None = None
) -> Summary | None:
    """Find the newest checkpoint that the job of a run has saved, and that fits its next attempt.

    `offload` is that of the next attempt if it differs. None for a script that is not known to load the
    checkpoint that it gets.
    """
    if checkpoint_handover(training.script).reading is not CheckpointReading.YES:
        return None
    target = target_of(training, offload)

    def fits(saved: Summary) -> bool:
        return target is None or can_resume(saved, target).is_loadable

    return newest_of_run(RunFiles(run), training.script.known_output_dir(training.args), fits)


def _checkpoint_named(name: str) -> Summary:
    if Path(name).is_dir() and not RunDir(Path(name)).job.exists():
        return checkpoint_of(Path(name).absolute())
    try:
        run = find_run(name, None)
    except InputMissing:
        raise InputMissing(*_not_found(name)) from None
    files = RunFiles(run)
    if (folder := output_dir_of(files)) is None:
        raise InputMissing(
            f"the run `{run.name}` did not record where it saves", "name the directory: `--resume DIR`"
        )
    if (saved := newest_of_run(files)) is None:
        message = f"there is no complete checkpoint that `{run.name}` has saved in `{shown(folder)}`"
        raise InputMissing(message, _instead_of_run(files, folder))
    return saved


def _instead_of_run(files: RunFiles, folder: Path) -> str:
    if (before := resumed_of(files)) is not None:
        return f"`--resume {typed(before)}` names the one that it resumed from"
    return _verify(folder) if by_age(folder) else "`zlaunch checkpoint list DIR` shows what a directory has"


def _verify(folder: Path) -> str:
    return f"`zlaunch checkpoint verify {typed(folder)}` shows what is wrong with those that are there"


def _not_found(name: str, option: str = "--resume") -> tuple[str, str]:
    path = Path(name)
    if path.is_file():
        return f"`{option} {name}` is a file", f"name the directory it is in: `{option} {typed(path.parent)}`"
    message = f"`{option} {name}`: there is neither such a directory nor such a run"
    if option == RESUME:
        message = f"`{option} {name}`: there is no such directory"
    beside = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
    if option == RESUME and path.name == name and step_in(name) is None:
        return message, "`--resume latest`, before the script, resumes from the newest checkpoint of this job"
    if meant := hint_for_value(option.lstrip("-"), name):
        return message, meant
    if near := get_close_matches(path.name, beside, 1):
        return message, f"did you mean `{option} {typed(path.with_name(near[0]))}`?"
    return message, "`zlaunch checkpoint list` and `zlaunch runs list` show what there is"


def _latest(job: JobSpec, script: Script) -> Summary | None:
    """Find the newest complete checkpoint of the newest run in the same directory, or else like this job.

    There may be none yet, so that a job which is requeued can always be started in the same way.
    """
    folder = script.known_output_dir(job.args)
    for files in _runs_before():
        is_same = _is_same_job(files, job) if folder is None else _saves_in(files, folder)
        if is_same and (saved := newest_of_run(files)) is not None:
            return saved
    if folder is not None:
        refuse_several(folder, by_age(folder))
        return newest_complete(folder)
    others = (run for run in _runs_before() if _is_same_script(run, job) and newest_of_run(run) is not None)
    if (other := next(others, None)) is not None:
        raise InputMissing(
            f"`--resume latest`: {script.path.name} does not say where it saves, and no run with these "
            "arguments has a complete checkpoint",
            f"`--resume {other.root.name}` resumes from a run with others; or name a directory: "
            "`--resume DIR`",
        )
    return None


def _runs_before() -> Iterator[RunFiles]:
    return map(RunFiles, all_runs(None))


def _saves_in(files: RunFiles, folder: Path) -> bool:
    output = output_dir_of(files)
    return output is not None and output.resolve() == folder.resolve()


def _is_same_job(files: RunFiles, job: JobSpec) -> bool:
    arguments = files.job.get("spec", {}).get("script_args")
    return _is_same_script(files, job) and arguments == list(job.args.words)


def _is_same_script(files: RunFiles, job: JobSpec) -> bool:
    place, words = Path(files.job.get("working_directory", "")), files.job.get("script", [])
    return bool(words) and (place / words[0]).resolve() == job.script.resolve()
