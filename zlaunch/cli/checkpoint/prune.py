"""`zlaunch checkpoint prune`: delete old checkpoints."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.checkpoint.find import checkpoints_at
from zlaunch.checkpoint.prune import delete, delete_rest, half_deleted, superfluous
from zlaunch.checkpoint.summary import Summary, summarize
from zlaunch.cli.options import AsJson
from zlaunch.cli.views.checkpoint import shown, state
from zlaunch.cli.views.dump import to_json
from zlaunch.units import plural, size


def prune(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A directory with checkpoints.")],
    keep: Annotated[int, typer.Option(min=1, metavar="N", help="How many complete ones to keep.")],
    yes: Annotated[bool, typer.Option("--yes", help="Delete them, and do not only list them.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete all but the newest complete checkpoints.

    Checkpoints are counted per directory. Incomplete ones are deleted too, unless they are newer than all
    complete ones. Universal checkpoints and models are kept.
    """
    checkpoints = list(map(summarize, checkpoints_at(folder)))
    old = superfluous(checkpoints, keep)
    rests = half_deleted(checkpoints)
    for saved in old:
        if yes:
            delete(saved.checkpoint)
        if not as_json:
            facts = f"step {saved.step}, {state(saved)}, {size(saved.nbytes)}"
            console.data(f"{shown(saved.checkpoint.folder)}: {facts}")
    for rest in rests:
        if yes:
            delete_rest(rest)
        if not as_json:
            console.data(f"{shown(rest)}: left over from an interrupted deletion")
    if as_json:
        console.data(to_json(_members(old, rests, is_deleted=yes)))
    _say_total(old, is_deleted=yes)


def _say_total(old: Sequence[Summary], *, is_deleted: bool) -> None:
    count, total = plural(len(old), "checkpoint"), size(sum(saved.nbytes for saved in old))
    if not old:
        console.say("nothing to delete")
    else:
        console.say(f"deleted {count}, {total}" if is_deleted else f"`--yes` deletes {count}, {total}")


def _members(old: Sequence[Summary], rests: Sequence[Path], *, is_deleted: bool) -> dict[str, object]:
    checkpoints = [
        {
            "directory": str(saved.checkpoint.folder),
            "step": saved.step,
            "state": state(saved),
            "bytes": saved.nbytes,
        }
        for saved in old
    ]
    return {"deleted": is_deleted, "checkpoints": checkpoints, "interrupted": [str(rest) for rest in rests]}
