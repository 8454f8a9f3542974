"""Find the checkpoint that `--resume` means: at a path, of a run, or the newest of this job."""

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from zlaunch.checkpoint.newest import (
    by_age,
    newest_complete,
    newest_since,
    refuse_several,
    to_go_on_from,
)
from zlaunch.checkpoint.summary import Summary
from zlaunch.errors import InputMissing
from zlaunch.files import shown, typed
from zlaunch.job.script import Script
from zlaunch.job.spec import JobSpec
from zlaunch.resume.handover import TAG_VARIABLE, checkpoint_handover
from zlaunch.resume.resumption import Resumption
from zlaunch.rundir.layout import RunDir
from zlaunch.rundir.run_files import RunFiles, read_run_files
from zlaunch.runs.saved_by_run import began, newest_of_run, output_dir_of, resumed_of

_LIST = "`zlaunch checkpoint list DIR` shows what a directory has"

RESUME_LATEST = "latest"
"""The value of `--resume` for the newest complete checkpoint of this job, if there is one."""


def find_resumption(job: JobSpec, script: Script) -> Resumption | None:
    """Find what a job goes on from; None if it begins anew, as there is nothing yet to go on from.

    Raise InputMissing if there is no such checkpoint, WrongUsage if several directories have one.
    """
    if job.resume is None:
        return None
    saved = _latest(job, script) if job.resume == RESUME_LATEST else _named(job.resume)
    if saved is None:
        return None
    return Resumption(saved, checkpoint_handover(script), script.mentions(TAG_VARIABLE))


def nothing_yet(job: JobSpec, script: Script) -> str:
    """Say that a job begins anew for want of a newest checkpoint."""
    folder = script.known_output_dir(job.args)
    if folder is None:
        return f"no run of {script.path.name} has a complete checkpoint yet: the training begins anew"
    said = f"there is no complete checkpoint in `{shown(folder)}` yet: the training begins anew"
    verify = f"; `zlaunch checkpoint verify {typed(folder)}` says what is wrong with those that are there"
    return f"{said}{verify if by_age(folder) else ''}"


def _named(name: str) -> Summary:
    """Find a checkpoint by its path, by that of a directory with several, or by the run that saved it."""
    if Path(name).is_dir() and not RunDir(Path(name)).job.exists():
        return to_go_on_from(Path(name).absolute())
    from zlaunch.runs.store import find_run  # what judges a run; a start needs it only here

    try:
        run = find_run(name, None)
    except InputMissing:
        raise InputMissing(*_not_found(name)) from None
    files = read_run_files(run)
    if (folder := output_dir_of(files)) is None:
        raise InputMissing(
            f"the run `{run.name}` did not record where it saves", "name the directory: `--resume DIR`"
        )
    if (found := newest_since(folder, began(files))) is None:
        before = resumed_of(files)
        raise InputMissing(
            f"there is no checkpoint that `{run.name}` has saved in `{shown(folder)}`",
            _LIST if before is None else f"`--resume {typed(before)}` names the one that it went on from",
        )
    return found


def _not_found(name: str) -> tuple[str, str]:
    """Say that there is no such checkpoint, and what may be meant."""
    path = Path(name)
    if path.is_file():
        return f"`--resume {name}` is a file", f"name the directory it is in: `--resume {typed(path.parent)}`"
    said = f"`--resume {name}`: there is neither such a directory nor such a run"
    beside = [one.name for one in path.parent.iterdir() if one.is_dir()] if path.parent.is_dir() else []
    if near := get_close_matches(path.name, beside, 1):
        return said, f"did you mean `--resume {typed(path.with_name(near[0]))}`?"
    return said, "`zlaunch checkpoint list` and `zlaunch runs list` show what there is"


def _latest(job: JobSpec, script: Script) -> Summary | None:
    """Find the newest complete checkpoint of the newest run in the same directory, or else like this job.

    There may be none yet, so that a job which is requeued can always be started in the same way.
    """
    folder = script.known_output_dir(job.args)
    for files in _runs_before():
        where = output_dir_of(files)
        if where is None or not (_is_same_job(files, job) if folder is None else _is_same(where, folder)):
            continue
        if (found := newest_of_run(files, where)) is not None:
            return found
    if folder is not None:
        refuse_several(folder, by_age(folder))
        return newest_complete(folder)
    others = (one for one in _runs_before() if _is_same_script(one, job) and _has_saved(one))
    if (other := next(others, None)) is not None:
        raise InputMissing(
            f"`--resume latest`: {script.path.name} does not say where it saves, and no run with these "
            "arguments has a complete checkpoint",
            f"`--resume {other.root.name}` goes on from one with others; or name a directory: `--resume DIR`",
        )
    return None


def _runs_before() -> Iterator[RunFiles]:
    from zlaunch.runs.store import all_runs  # as above

    return map(read_run_files, all_runs(None))


def _has_saved(files: RunFiles) -> bool:
    where = output_dir_of(files)
    return where is not None and newest_of_run(files, where) is not None


def _is_same_job(files: RunFiles, job: JobSpec) -> bool:
    arguments = files.job.get("spec", {}).get("script_args")
    return _is_same_script(files, job) and arguments == list(job.args.words)


def _is_same_script(files: RunFiles, job: JobSpec) -> bool:
    place, words = Path(files.job.get("working_directory", "")), files.job.get("script", [])
    return bool(words) and _is_same(place / words[0], job.script)


def _is_same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()
