"""Delete old checkpoints, and never the last one that can be used."""

import os
import shutil
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from zlaunch.checkpoint.find import LATEST, CheckpointFolder, SavedBy, latest_tag
from zlaunch.checkpoint.summary import Summary
from zlaunch.errors import Unavailable

_PRUNED = (SavedBy.TRAINER, SavedBy.ENGINE, SavedBy.ACCELERATE, SavedBy.DCP)
"""What a training saves again and again; a universal checkpoint or a model was made on purpose."""


def superfluous(found: Sequence[Summary], keep: int) -> list[Summary]:
    """Choose what to delete: in each directory all but the newest `keep` complete checkpoints.

    One that is not complete is deleted only if a complete one is newer, because it may just be written.
    """
    counted = [one for one in found if one.checkpoint.saved_by in _PRUNED and one.step is not None]
    by_run = groupby(sorted(counted, key=_run), key=_run)
    return [one for _, run in by_run for one in _superfluous(sorted(run, key=_step), keep)]


def _run(one: Summary) -> Path:
    return one.checkpoint.folder.parent


def _step(one: Summary) -> int:
    return one.step or 0


def _superfluous(run: Sequence[Summary], keep: int) -> list[Summary]:
    complete = [one for one in run if not one.problems]
    kept = complete[-keep:]
    if not kept:
        return []
    newest = _step(kept[-1])
    return [one for one in run if one not in kept and _step(one) <= newest and not _is_latest(one.checkpoint)]


def _is_latest(checkpoint: CheckpointFolder) -> bool:
    """Whether the file `latest` beside a tag names it: without it, DeepSpeed finds none."""
    return checkpoint.engine == checkpoint.folder and checkpoint.tag == latest_tag(
        checkpoint.folder.parent, LATEST
    )


def delete(checkpoint: CheckpointFolder) -> None:
    """Delete a checkpoint; from the first moment it is not taken for one. Raise Unavailable if that fails."""
    folder = checkpoint.folder
    doomed = folder.with_name(f".{folder.name}.{os.getpid()}.deleted")
    try:
        folder.rename(doomed)
        if doomed.is_symlink():
            doomed.unlink()
        else:
            shutil.rmtree(doomed)
    except OSError as error:
        raise Unavailable(f"`{folder}` cannot be deleted: {error.strerror}") from None
