"""The newest checkpoint in the directory that a training saves to."""

from collections.abc import Callable, Sequence
from pathlib import Path

from zlaunch.checkpoint.find import CheckpointFolder, SavedBy, checkpoint_at, find
from zlaunch.checkpoint.summary import Summary, age, summarize
from zlaunch.errors import WrongUsage
from zlaunch.files import shown, typed


def by_age(folder: Path) -> list[CheckpointFolder]:
    """List the checkpoints in a directory, the newest first; those below it only if it has none itself.

    Models are left out: a directory with checkpoints often has the one that was trained, too. That of a
    Trainer at stage 3 may be a tag of its engine.
    """
    checkpoints = [checkpoint for checkpoint in find(folder) if checkpoint.saved_by is not SavedBy.WEIGHTS]
    trainers = {
        checkpoint.folder.parent for checkpoint in checkpoints if checkpoint.saved_by is SavedBy.TRAINER
    }
    checkpoints = [
        checkpoint
        for checkpoint in checkpoints
        if checkpoint.saved_by is not SavedBy.ENGINE or checkpoint.folder.parent not in trainers
    ]
    near = [checkpoint for checkpoint in checkpoints if checkpoint.folder.parent == folder]
    return sorted(near or checkpoints, key=age, reverse=True)


def newest_complete(
    folder: Path, since: float = 0.0, fits: Callable[[Summary], bool] = lambda _: True
) -> Summary | None:
    """Read the newest checkpoint without a problem, of those that were written since a time and that fit.

    An earlier training may have left later steps in the same directory.
    """
    for checkpoint in by_age(folder):
        if checkpoint.written < since:
            continue
        saved = summarize(checkpoint)
        if not saved.obstructions and fits(saved):
            return saved
    return None


def checkpoint_of(folder: Path) -> Summary:
    """Read the checkpoint that a directory stands for: the newest complete one, else the newest, or a model.

    Raise InputMissing if there is none, WrongUsage if there are those of several trainings.
    """
    checkpoints = by_age(folder)
    refuse_several(folder, checkpoints)
    if not checkpoints:
        return summarize(checkpoint_at(folder))
    newest = summarize(checkpoints[0])
    return (newest_complete(folder) or newest) if newest.obstructions else newest


def damaged_after(chosen: Summary) -> list[Summary]:
    """Read the newer checkpoints beside a chosen one if it was chosen because all of them are damaged."""
    checkpoints = by_age(chosen.checkpoint.folder.parent)
    folders = [checkpoint.folder for checkpoint in checkpoints]
    if chosen.checkpoint.folder not in folders:
        return []
    damaged: list[Summary] = []
    for checkpoint in checkpoints[: folders.index(chosen.checkpoint.folder)]:
        saved = summarize(checkpoint)
        if not saved.obstructions:
            return []
        damaged.append(saved)
    return damaged


def refuse_several(folder: Path, checkpoints: Sequence[CheckpointFolder]) -> None:
    """Raise WrongUsage if checkpoints are those of several trainings."""
    if len({checkpoint.folder.parent for checkpoint in checkpoints}) > 1:
        raise WrongUsage(
            f"there are checkpoints of several trainings in `{shown(folder)}`",
            f"name the checkpoint directory, such as {typed(checkpoints[0].folder.parent)}",
        )
