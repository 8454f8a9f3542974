"""What a run has saved, and where."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from zlaunch.checkpoint.find import WEIGHTS, SavedBy, checkpoint_parent
from zlaunch.checkpoint.newest import newest_complete, written
from zlaunch.checkpoint.summary import Summary
from zlaunch.job.args import ScriptArgs
from zlaunch.job.script import RESUME
from zlaunch.rundir.run_files import RunFiles, read_run_files
from zlaunch.runs.what_ran import program_of

_ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")


@dataclass(frozen=True)
class SavedByRun:
    """The model and the newest complete checkpoint of a run; None for what it has not."""

    model: Path | None = None
    """A directory for `from_pretrained`."""
    checkpoint: Summary | None = None
    began_with: bool = False
    """Whether the run has saved none, and this is the one that it went on from."""
    is_at_end: bool = False
    """Whether it has all steps of the training."""
    asked: tuple[str, ...] = ()
    """The words after `zlaunch train` that started the run in this directory, without a checkpoint; empty if
    it was started otherwise."""


def saved_by_run(files: RunFiles) -> SavedByRun:
    """Look for what the script of a run, or of an earlier attempt of its job, has recorded as saved.

    The newest checkpoint of a run that has saved none is the one that it went on from.
    """
    model, folder = _recorded(files, "saved_model"), _saved_to(files)
    try:
        own = None if folder is None else newest_of_run(files, folder)
        newest = own or _went_on_from(files)
        found = None if model is None else _with_weights(model, began(files))
        return SavedByRun(found, newest, own is None, _has_all_steps(files, newest), _asked(files))
    except OSError:  # the directory is on another host, or not ours to read
        return SavedByRun()


def _has_all_steps(files: RunFiles, newest: Summary | None) -> bool:
    steps = max((one.get("steps") or 0 for one in files.heartbeats.values()), default=0)
    return newest is not None and 0 < steps <= (newest.step or 0)


def _asked(files: RunFiles) -> tuple[str, ...]:
    """Return what may be typed again: not what names a checkpoint, or a run directory that exists now."""
    _, *words = files.job.get("asked", [""])
    if words[:1] != ["train"] or _place(files) != Path.cwd():
        return ()
    end = words.index("--") if "--" in words else len(words)
    own = _without([*_without(words[1:end], "--resume")], "--run-dir")
    return (*own, *_without(words[end:], RESUME))


def _without(words: list[str], flag: str) -> Iterator[str]:
    """Leave out an argument of the script and its value."""
    rest = iter(words)
    for word in rest:
        name, is_given, _ = word.replace("_", "-").partition("=")
        if name != flag.replace("_", "-"):
            yield word
        elif not is_given:
            next(rest, None)


def newest_of_run(
    files: RunFiles, folder: Path, fits: Callable[[Summary], bool] = lambda _: True
) -> Summary | None:
    """Read the newest complete checkpoint that the job of a run has saved to a directory, and that fits.

    One of a step that the job has not reached is of a later job. One that was saved after the loss had become
    NaN is left out: its weights may be lost.
    """
    diverged = [found for one in _attempts(files) if (found := _divergence(one)) is not None]
    steps = [pulse.get("step", 0) for one in _attempts(files) for pulse in one.heartbeats.values()]
    reached = max(steps, default=0) or math.inf

    def is_sound(one: Summary) -> bool:
        return (one.step or 0) <= reached and not any(loss.may_have_lost(one) for loss in diverged)

    return newest_complete(folder, began(files), lambda one: is_sound(one) and fits(one))


@dataclass(frozen=True)
class _Divergence:
    """A run whose loss stayed NaN or infinite."""

    last_finite: int
    """The last step at which it was not; after this step, the weights may have been lost."""
    ended: float
    """Seconds since 1970; what was written later is of another run."""

    def may_have_lost(self, one: Summary) -> bool:
        is_later = one.step is None or one.step >= self.last_finite
        return is_later and written(one.checkpoint) <= self.ended


def _divergence(files: RunFiles) -> _Divergence | None:
    pulse, ending = files.heartbeats.get(0, {}), files.ending
    if "loss_lost" not in pulse:
        return None
    ended = ending["started"] + ending["seconds"] if {"started", "seconds"} <= {*ending} else math.inf
    return _Divergence(pulse.get("finite_loss_step", 0), ended)


def output_dir_of(files: RunFiles) -> Path | None:
    """Find the directory in which the job of a run saves checkpoints; None if it is not recorded."""
    told = program_of(files).get("trainer_args", {}).get("output_dir")
    given = told or ScriptArgs.of(files.job.get("script", [])).value("output_dir")
    return _saved_to(files) or (_place(files) / given if isinstance(given, str) else None)


def began(files: RunFiles) -> float:
    """When the job of a run was started: its first attempt, if others followed."""
    *_, first = _attempts(files)
    return first.job.get("started", 0.0)


def resumed_of(files: RunFiles) -> Path | None:
    """Return the checkpoint that the job of a run went on from; None if it began anew."""
    *_, first = _attempts(files)
    resumed = first.job.get("spec", {}).get("resume")
    return Path(resumed) if isinstance(resumed, str) else None


def _went_on_from(files: RunFiles) -> Summary | None:
    """Read it, unless it is universal, which `--resume` alone does not load."""
    folder = resumed_of(files)
    if folder is None:
        return None
    return newest_complete(folder, fits=lambda one: one.checkpoint.saved_by is not SavedBy.UNIVERSAL)


def _attempts(files: RunFiles) -> Iterator[RunFiles]:
    """Read a run and the attempts of its job before it."""
    yield files
    if (before := files.job.get("continues")) and (root := files.root.with_name(before)).is_dir():
        yield from _attempts(read_run_files(root))


def _recorded(files: RunFiles, name: Literal["saved_model", "saved_checkpoint"]) -> Path | None:
    """Find where the last attempt that saved has done so."""
    places = ((_place(one), program_of(one).get(name)) for one in _attempts(files))
    return next((place / saved for place, saved in places if saved), None)


def _saved_to(files: RunFiles) -> Path | None:
    saved = _recorded(files, "saved_checkpoint")
    return None if saved is None else checkpoint_parent(saved)


def _place(files: RunFiles) -> Path:
    return Path(files.job.get("working_directory", ""))


def _with_weights(folder: Path, since: float) -> Path | None:
    found = [folder / name for name in (*WEIGHTS, *_ADAPTERS)]
    return folder if any(one.is_file() and one.stat().st_mtime >= since for one in found) else None
