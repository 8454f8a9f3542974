"""The file `latest`, by which an engine finds the tag to load."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from zlaunch.checkpoint.find import LATEST, SavedBy, latest_tag
from zlaunch.checkpoint.summary import Summary, age
from zlaunch.checkpoint.verify import Problem
from zlaunch.files import typed


def wrong_latest(checkpoints: Sequence[Summary]) -> Iterator[Problem]:
    """Find files `latest` by which an engine does not find the newest complete tag beside them, or none.

    The engine's rank 0 writes it without waiting for the others, so it may name a save that was interrupted.
    """
    tags = [saved for saved in checkpoints if saved.checkpoint.saved_by is SavedBy.ENGINE]
    for base, beside in groupby(tags, key=lambda saved: saved.checkpoint.folder.parent):
        asked = {saved.checkpoint.folder.name: saved for saved in beside}
        complete = {name: saved for name, saved in asked.items() if not saved.problems}
        named, file = latest_tag(base), base / LATEST
        if named in complete or not file.exists():
            continue
        if named and named not in asked and (base / named).is_dir():
            continue
        message = f"{_problem(named)}, and DeepSpeed would load that"
        if complete:
            newest = max(complete.values(), key=lambda saved: age(saved.checkpoint))
            message += f"; `echo {newest.checkpoint.tag} > {typed(file)}` repairs it"
        yield Problem(file, message)


def _problem(named: str | None) -> str:
    if named is None:
        return "it is not text"
    return f"it names `{named}`, which is not complete" if named else "it is empty"
