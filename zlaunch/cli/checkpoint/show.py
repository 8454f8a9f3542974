"""`zlaunch checkpoint show`: what one checkpoint contains."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.checkpoint.find import CheckpointFolder, SavedBy, recognize
from zlaunch.checkpoint.summary import summarize
from zlaunch.cli.options import AsJson
from zlaunch.cli.views.checkpoint import facts, members, problem_lines, shown, taken, typed
from zlaunch.cli.views.dump import to_json
from zlaunch.resume.newest import by_age, checkpoint_of


def _newest_below(folder: Path, itself: CheckpointFolder) -> Iterator[str]:
    """Name the newest checkpoint below a model."""
    if itself.saved_by is SavedBy.WEIGHTS and (below := by_age(folder)):
        text = f"{shown(folder)} has checkpoints, too: `zlaunch checkpoint show {typed(below[0].folder)}`"
        yield from console.paragraph(text)


def show(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="A checkpoint: `checkpoint-500`, what `save_checkpoint` was given, or what is above them.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show what a checkpoint contains: step, stage, ranks, type, size and release."""
    itself = recognize(folder)
    if itself is None:
        saved = checkpoint_of(folder)
        console.say(*taken(folder, saved))
    else:
        saved = summarize(itself)
        console.say(*_newest_below(folder, itself))
    if as_json:
        console.data(to_json(members(saved)))
        return
    console.data(*console.table(list(facts(saved)), indent=""))
    for line in problem_lines((*saved.problems, *saved.unknown), saved.checkpoint.folder):
        console.data(*console.paragraph(line, "    "))
