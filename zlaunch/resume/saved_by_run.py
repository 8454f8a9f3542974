"""What a run has saved, and the checkpoint from which a job resumes that names the run."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from zlaunch.checkpoint.find import CheckpointFolder, SavedBy, checkpoint_parent, weight_files
from zlaunch.checkpoint.model_files import model_problems
from zlaunch.checkpoint.problem import Problem
from zlaunch.checkpoint.summary import Summary
from zlaunch.diagnosis.collect import named_output_dir
from zlaunch.dsconfig.schema.storage import LOAD_UNIVERSAL
from zlaunch.dsconfig.text.document import dotted
from zlaunch.errors import ZlaunchError
from zlaunch.frozen import dataclass
from zlaunch.job.script import RESUME
from zlaunch.job.script_reader import read_script
from zlaunch.resume.check_resume import refused_by_script
from zlaunch.resume.handover import Resumption, checkpoint_handover
from zlaunch.resume.newest import newest_complete
from zlaunch.rundir.run_files import RunFiles


@dataclass(frozen=True)
class SavedByRun:
    """The model and the newest complete checkpoint of a run; None for what it has not."""

    model: Path | None = None
    """A directory for `from_pretrained`."""
    damage: Problem | None = None
    """Why that cannot load the model."""
    checkpoint: Summary | None = None
    began_with: bool = False
    """Whether the run has saved none, and this is the one that it resumed from."""
    is_at_end: bool = False
    """Whether it has all steps of the training."""
    asked: tuple[str, ...] = ()
    """The words after `zlaunch train` that started the run in this directory, without a checkpoint; empty if
    it was started otherwise."""
    refusal: str = ""
    """Why `--resume` is refused for its script; empty if it is not."""


def saved_by_run(files: RunFiles) -> SavedByRun:
    """Look for what the script of a run, or of an earlier attempt of its job, has saved.

    The newest checkpoint of a run that has saved none is the one that it resumed from.
    """
    try:
        saved = newest_of_run(files)
        newest = saved or _resumed_checkpoint(files)
        model = _saved_model(files)
        return SavedByRun(
            model,
            _damage_of(model),
            newest,
            saved is None,
            _has_all_steps(files, newest),
            _asked(files, newest),
            _refusal(files, newest),
        )
    except OSError:  # the directory is on another host, or not ours to read
        return SavedByRun()


def _refusal(files: RunFiles, saved: Summary | None) -> str:
    script, *_ = [*files.job.get("script", []), ""]
    if saved is None or not script:
        return ""
    try:
        source = read_script(_working_directory(files) / script)
    except ZlaunchError:
        return ""
    if saved.cannot_load is not None:
        return saved.cannot_load
    refusals = refused_by_script(Resumption(saved, checkpoint_handover(source)), source)
    return refusals[0].message if refusals else ""


def newest_of_run(
    files: RunFiles, otherwise: Path | None = None, fits: Callable[[Summary], bool] = lambda _: True
) -> Summary | None:
    """Read the newest complete checkpoint that the job of a run has saved, and that fits.

    `otherwise` is the directory to look in if the run has not recorded any. A checkpoint of a step that the
    job has not reached is of a later job. One that was saved after the loss had become NaN is left out: its
    weights may be lost.
    """
    folder = output_dir_of(files) or otherwise
    if folder is None:
        return None
    attempts = list(_attempts(files))
    diverged = [loss for loss in map(_divergence, attempts) if loss is not None]
    reached = max(map(_step_of, attempts)) or math.inf

    def is_usable(saved: Summary) -> bool:
        is_sound = not any(loss.may_have_lost(saved) for loss in diverged)
        return is_sound and (saved.step or 0) <= reached and fits(saved)

    return newest_complete(folder, started_at(files), is_usable)


def output_dir_of(files: RunFiles) -> Path | None:
    """Find the directory in which the job of a run saves checkpoints; None if it is not recorded."""
    saved = _recorded_path(files, "saved_checkpoint")
    if saved is not None:
        return checkpoint_parent(saved)
    return named_output_dir(files)


def started_at(files: RunFiles) -> float:
    """When the job of a run was started: its first attempt, if others followed."""
    *_, first = _attempts(files)
    return first.job.get("started", 0.0)


def resumed_of(files: RunFiles) -> Path | None:
    """Return the checkpoint that the job of a run resumed from; None if it started at step 0."""
    *_, first = _attempts(files)
    resumed = first.job.get("spec", {}).get("resume")
    return Path(resumed) if isinstance(resumed, str) else None


def _resumed_checkpoint(files: RunFiles) -> Summary | None:
    """Read it, unless it is universal, which `--resume` alone does not load."""
    folder = resumed_of(files)
    if folder is None:
        return None
    return newest_complete(folder, fits=lambda saved: saved.checkpoint.saved_by is not SavedBy.UNIVERSAL)


def _attempts(files: RunFiles) -> Iterator[RunFiles]:
    attempt: RunFiles | None = files
    while attempt is not None:
        yield attempt
        attempt = attempt.previous


def _step_of(files: RunFiles) -> int:
    return max((pulse.get("step", 0) for pulse in files.heartbeats.values()), default=0)


@dataclass(frozen=True)
class _Divergence:
    last_finite: int
    """The last step at which it was not; after this step, the weights may have been lost."""
    ended: float
    """Seconds since 1970; what was written later is of another run."""

    def may_have_lost(self, saved: Summary) -> bool:
        is_later = saved.step is None or saved.step >= self.last_finite
        return is_later and saved.checkpoint.written <= self.ended


def _divergence(files: RunFiles) -> _Divergence | None:
    pulse, ending = files.heartbeats.get(0, {}), files.ending
    if "loss_lost" not in pulse:
        return None
    ended = math.inf
    if "started" in ending and "seconds" in ending:
        ended = ending["started"] + ending["seconds"]
    return _Divergence(pulse.get("finite_loss_step", 0), ended)


def _saved_model(files: RunFiles) -> Path | None:
    folder = _recorded_path(files, "saved_model")
    if folder is None:
        return None
    since = started_at(files)
    is_there = any(file.is_file() and file.stat().st_mtime >= since for file in weight_files(folder))
    return folder if is_there else None


def _damage_of(model: Path | None) -> Problem | None:
    if model is None:
        return None
    return next(iter(model_problems(CheckpointFolder(model, SavedBy.WEIGHTS), {})), None)


def _recorded_path(files: RunFiles, name: Literal["saved_model", "saved_checkpoint"]) -> Path | None:
    for attempt in _attempts(files):
        if saved := attempt.program.get(name):
            return _working_directory(attempt) / saved
    return None


def _working_directory(files: RunFiles) -> Path:
    return Path(files.job.get("working_directory", ""))


def _has_all_steps(files: RunFiles, newest: Summary | None) -> bool:
    steps = max((pulse.get("steps") or 0 for pulse in files.heartbeats.values()), default=0)
    return newest is not None and 0 < steps <= (newest.step or 0)


def _asked(files: RunFiles, newest: Summary | None) -> tuple[str, ...]:
    """Return what may be typed again: not what names a checkpoint, or a run directory that exists now.

    A run that resumed from a universal checkpoint saves others, which `--resume` refuses with its key.
    """
    _, *words = files.job.get("asked", [""])
    if words[:1] != ["train"] or _working_directory(files) != Path.cwd():
        return ()
    end = words.index("--") if "--" in words else len(words)
    options = [*_words_without(words[1:end], "--resume")]
    options = [*_words_without(options, "--run-dir")]
    if newest is not None and newest.checkpoint.saved_by is not SavedBy.UNIVERSAL:
        options = _without_universal(options, files)
    return (*options, *_words_without(words[end:], RESUME))


def _without_universal(options: list[str], files: RunFiles) -> list[str]:
    """Leave out the key with which an engine loads universal checkpoints, or undo it in a ds_config."""
    key = dotted(LOAD_UNIVERSAL)
    others = [*_words_without(options, "--set", f"{key}=")]
    section = files.config.get(LOAD_UNIVERSAL[0])
    loads_universal = isinstance(section, dict) and section.get(LOAD_UNIVERSAL[1]) is True
    if loads_universal and others == options and "--allow-reshard" not in options:
        return ["--set", f"{key}=false", *options]
    return others


def _words_without(words: list[str], flag: str, value: str = "") -> Iterator[str]:
    """Leave out an option, or only where its value begins with `value`."""
    rest = iter(words)
    for word in rest:
        name, is_given, text = word.partition("=")
        if name.replace("_", "-") != flag.replace("_", "-"):
            yield word
            continue
        whole = [word]
        if not is_given:
            whole += [text := next(rest, "")]
        if not text.startswith(value):
            yield from whole
