"""The newest checkpoint in the directory that a training saves to."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from zlaunch.checkpoint.find import (
    LATEST,
    LATEST_UNIVERSAL,
    CheckpointFolder,
    SavedBy,
    checkpoint_at,
    find,
    latest_tag,
)
from zlaunch.checkpoint.summary import Summary, steps_taken, summarize
from zlaunch.checkpoint.verify import Problem
from zlaunch.errors import WrongUsage
from zlaunch.files import shown, typed


def by_age(folder: Path) -> list[CheckpointFolder]:
    """List the checkpoints in a directory, the newest first; those below it only if it has none itself.

    Models are left out: a directory with checkpoints often has the one that was trained, too. That of a
    Trainer at stage 3 may be a tag of its engine.
    """
    found = [one for one in find(folder) if one.saved_by is not SavedBy.WEIGHTS]
    trainers = {one.folder.parent for one in found if one.saved_by is SavedBy.TRAINER}
    found = [one for one in found if one.saved_by is not SavedBy.ENGINE or one.folder.parent not in trainers]
    near = [one for one in found if one.folder.parent == folder] or found
    return sorted(near, key=_age, reverse=True)


def newest_complete(
    folder: Path, since: float = 0.0, fits: Callable[[Summary], bool] = lambda _: True
) -> Summary | None:
    """Read the newest checkpoint without a problem, of those that were written since a time and that fit.

    An earlier training may have left later steps in the same directory.
    """
    for one in by_age(folder):
        if written(one) >= since and not (found := summarize(one)).problems and fits(found):
            return found
    return None


def to_go_on_from(folder: Path) -> Summary:
    """Read the checkpoint that a directory stands for: the newest complete one, else the newest, or a model.

    Raise InputMissing if there is none, WrongUsage if there are those of several trainings.
    """
    return newest_since(folder, 0.0) or summarize(checkpoint_at(folder))


def newest_since(folder: Path, since: float) -> Summary | None:
    """Read the newest of the checkpoints that were written since a time, a complete one if there is any.

    None if there is none. Raise WrongUsage if there are those of several trainings.
    """
    found = [one for one in by_age(folder) if written(one) >= since]
    refuse_several(folder, found)
    read = [summarize(one) for one in found[:1]]
    if read and read[0].problems:
        return newest_complete(folder, since) or read[0]
    return next(iter(read), None)


def refuse_several(folder: Path, found: Sequence[CheckpointFolder]) -> None:
    """Raise WrongUsage if checkpoints are those of several trainings."""
    if len({one.folder.parent for one in found}) > 1:
        raise WrongUsage(
            f"there are checkpoints of several trainings in `{shown(folder)}`",
            f"name one directory, such as {typed(found[0].folder.parent)}",
        )


def written(one: CheckpointFolder) -> float:
    """When its files were last written, in seconds since 1970; a conversion of it does not count."""
    folders = {one.folder, one.engine or one.folder}
    files = [file for folder in folders for file in folder.glob("*") if file.name != LATEST_UNIVERSAL]
    return max((_changed(file) for file in files if file.is_file()), default=0.0)


def _changed(file: Path) -> float:
    with suppress(OSError):  # a running training deletes its oldest checkpoints
        return file.stat().st_mtime
    return 0.0


def wrong_latest(found: Sequence[Summary]) -> Iterator[Problem]:
    """Find files `latest` by which an engine does not find the newest complete tag beside them, or none.

    The engine's rank 0 writes it without waiting for the others, so it may name a save that was interrupted.
    """
    tags = [one for one in found if one.checkpoint.saved_by is SavedBy.ENGINE]
    for base, beside in groupby(tags, key=lambda one: one.checkpoint.folder.parent):
        asked = {one.checkpoint.folder.name: one for one in beside}
        complete = {name: one for name, one in asked.items() if not one.problems}
        named, file = latest_tag(base), base / LATEST
        if (
            named in complete
            or not file.exists()
            or (named and named not in asked and (base / named).is_dir())
        ):
            continue
        said = "it is not text" if named is None else "it is empty"
        if named:
            said = f"it names `{named}`, which is not complete"
        newest = max(complete.values(), key=lambda one: _age(one.checkpoint), default=None)
        then = "" if newest is None else f"; `echo {newest.checkpoint.tag} > {typed(file)}` repairs it"
        yield Problem(file, f"{said}, and DeepSpeed would load that{then}")


def _age(one: CheckpointFolder) -> tuple[int, bool, float]:
    """Sort key: the steps taken, which a name may not tell; what was saved goes before its conversion."""
    return steps_taken(one) or 0, one.saved_by is not SavedBy.UNIVERSAL, written(one)
