"""Delete old checkpoints, and never the last one that can be used."""

import os
import re
import shutil
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from zlaunch.checkpoint.find import LATEST, CheckpointFolder, SavedBy, latest_tag, trainer_state
from zlaunch.checkpoint.summary import Summary
from zlaunch.errors import Unavailable

_DOOMED = re.compile(r"\..+\.\d+\.deleted")
"""The name of a checkpoint while it is deleted."""

_PRUNED = (SavedBy.TRAINER, SavedBy.ENGINE, SavedBy.ACCELERATE)
"""What a training saves again and again; a universal checkpoint or a model was made on purpose."""


def superfluous(checkpoints: Sequence[Summary], keep: int) -> list[Summary]:
    """Choose what to delete: in each directory all but the newest `keep` complete checkpoints.

    The newest are those of the last steps, and those that were written last. One that is not complete is
    deleted only if a complete one was written later, because it may just be written. One of an unknown layout
    stays. A link is not a checkpoint of its own, and its target stays, as does the best one of a Trainer.
    """
    folders = [saved.checkpoint.folder for saved in checkpoints]
    linked = {folder.resolve() for folder in folders if folder.is_symlink()}
    old: list[Summary] = []
    for _, run in groupby(sorted(filter(_is_counted, checkpoints), key=_run), key=_run):
        old += _superfluous(sorted(run, key=_step), keep)
    return [saved for saved in old if saved.checkpoint.folder.resolve() not in linked]


def _is_counted(saved: Summary) -> bool:
    is_pruned = saved.checkpoint.saved_by in _PRUNED and not saved.checkpoint.folder.is_symlink()
    return is_pruned and saved.step is not None and not saved.unknown


def _run(saved: Summary) -> tuple[Path, str]:
    """What a Trainer saves at its end, at stage 3, may be a tag of its engine beside its checkpoints."""
    return saved.checkpoint.folder.parent, saved.checkpoint.saved_by.value


def _step(saved: Summary) -> int:
    return saved.step or 0


def _superfluous(run: Sequence[Summary], keep: int) -> list[Summary]:
    complete = [saved for saved in run if not saved.problems]
    last_written = sorted(complete, key=_written)[-keep:]
    kept = [*complete[-keep:], *last_written]
    if not kept:
        return []
    newest, best = _written(last_written[-1]), {*map(_best, run)}

    def stays(saved: Summary) -> bool:
        may_be_written = bool(saved.problems) and _written(saved) > newest
        is_best = saved.checkpoint.folder.name in best
        return saved in kept or may_be_written or is_best or _is_latest(saved.checkpoint)

    return [saved for saved in run if not stays(saved)]


def _written(saved: Summary) -> float:
    return saved.checkpoint.written


def _best(saved: Summary) -> str:
    best = trainer_state(saved.checkpoint.folder).get("best_model_checkpoint")
    return Path(best).name if isinstance(best, str) else ""


def _is_latest(checkpoint: CheckpointFolder) -> bool:
    """Whether the file `latest` beside a tag names it: without it, DeepSpeed finds none."""
    return checkpoint.engine == checkpoint.folder and checkpoint.tag == latest_tag(
        checkpoint.folder.parent, LATEST
    )


def half_deleted(checkpoints: Sequence[Summary]) -> list[Path]:
    """Find what is left of deletions beside checkpoints that were interrupted."""
    rests: list[Path] = []
    for folder in sorted({saved.checkpoint.folder.parent for saved in checkpoints}):
        rests += [rest for rest in sorted(folder.iterdir()) if _DOOMED.fullmatch(rest.name)]
    return rests


def delete(checkpoint: CheckpointFolder) -> None:
    """Delete a checkpoint; from the first moment it is not taken for one. Raise Unavailable if that fails."""
    folder = checkpoint.folder
    doomed = folder.with_name(f".{folder.name}.{os.getpid()}.deleted")
    try:
        folder.rename(doomed)
    except OSError as error:
        raise Unavailable(f"`{folder}` cannot be deleted: {error.strerror}") from None
    delete_rest(doomed)


def delete_rest(doomed: Path) -> None:
    """Delete what has the name of a deleted checkpoint. Raise Unavailable if that fails."""
    try:
        if doomed.is_symlink():
            doomed.unlink()
        else:
            shutil.rmtree(doomed)
    except OSError as error:
        raise Unavailable(f"`{doomed}` cannot be deleted: {error.strerror}") from None
