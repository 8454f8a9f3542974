"""`zlaunch checkpoint prune`: delete old checkpoints."""

from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.checkpoint.find import checkpoints_at
from zlaunch.checkpoint.prune import delete, delete_rest, half_deleted, superfluous
from zlaunch.checkpoint.summary import summarize
from zlaunch.cli.views.checkpoint import shown, state
from zlaunch.units import plural, size


def prune(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A directory with checkpoints.")],
    keep: Annotated[int, typer.Option(min=1, metavar="N", help="How many complete ones to keep.")],
    yes: Annotated[bool, typer.Option("--yes", help="Delete them, and do not only list them.")] = False,
) -> None:
    """Delete all but the newest complete checkpoints.

    Checkpoints are counted in each directory apart. Those that are not complete are deleted too, unless they
    are newer than all complete ones. Universal checkpoints and models stay.
    """
    found = list(map(summarize, checkpoints_at(folder)))
    old = superfluous(found, keep)
    for one in old:
        if yes:
            delete(one.checkpoint)
        console.data(f"{shown(one.checkpoint.folder)}: step {one.step}, {state(one)}, {size(one.nbytes)}")
    for rest in half_deleted(found):
        if yes:
            delete_rest(rest)
        console.data(f"{shown(rest)}: left of a deletion that was interrupted")
    count, total = plural(len(old), "checkpoint"), size(sum(one.nbytes for one in old))
    if not old:
        console.say("nothing to delete")
    else:
        console.say(f"deleted {count}, {total}" if yes else f"`--yes` deletes {count}, {total}")
