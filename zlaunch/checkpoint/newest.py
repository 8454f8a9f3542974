"""The newest checkpoint in the directory that a training saves to."""

from collections.abc import Iterator
from pathlib import Path

from zlaunch.checkpoint.find import CheckpointFolder, SavedBy, find
from zlaunch.checkpoint.summary import Summary, summarize


def by_age(folder: Path) -> list[CheckpointFolder]:
    """List the checkpoints in a directory, the newest first; those below it only if it has none itself."""
    found = find(folder)
    near = [one for one in found if one.folder.parent == folder] or found
    return sorted(near, key=_age, reverse=True)


def newest_complete(folder: Path) -> Summary | None:
    """Read the newest checkpoint without a problem."""
    return next(_complete(by_age(folder)), None)


def _complete(ordered: list[CheckpointFolder]) -> Iterator[Summary]:
    for one in ordered:
        if one.saved_by is not SavedBy.WEIGHTS and not (found := summarize(one)).problems:
            yield found


def _age(one: CheckpointFolder) -> tuple[int, float]:
    """Sort key: the step, else when it was written; names of accelerate count epochs or steps."""
    step = one.named_step if one.saved_by is not SavedBy.ACCELERATE else None
    return step or 0, one.folder.stat().st_mtime
