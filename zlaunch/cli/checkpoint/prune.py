"""`zlaunch checkpoint prune`: delete old checkpoints."""

from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.checkpoint.find import find
from zlaunch.checkpoint.prune import delete, superfluous
from zlaunch.checkpoint.summary import summarize
from zlaunch.cli.views.checkpoint import shown, state
from zlaunch.errors import InputMissing
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
    found = [summarize(one) for one in find(folder)]
    if not found:
        raise InputMissing(f"there is no checkpoint in `{folder}`", "name the directory that was saved to")
    old = superfluous(found, keep)
    for one in old:
        if yes:
            delete(one.checkpoint)
        console.data(f"{shown(one.checkpoint.folder)}: step {one.step}, {state(one)}, {size(one.nbytes)}")
    count, total = plural(len(old), "checkpoint"), size(sum(one.nbytes for one in old))
    if not old:
        console.say("nothing to delete")
    else:
        console.say(f"deleted {count}, {total}" if yes else f"`--yes` deletes {count}, {total}")
