"""`zlaunch checkpoint show`: what one checkpoint contains."""

from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.checkpoint.find import checkpoint_at
from zlaunch.checkpoint.summary import summarize
from zlaunch.cli.options import AsJson
from zlaunch.cli.views.checkpoint import facts, members, problem_lines
from zlaunch.cli.views.dump import to_json


def show(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="A checkpoint: `checkpoint-500`, or what `save_checkpoint` was given."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show what a checkpoint contains: step, stage, ranks, type, size and release."""
    saved = summarize(checkpoint_at(folder))
    if as_json:
        console.data(to_json(members(saved)))
        return
    console.data(*console.table(list(facts(saved)), indent=""))
    for line in problem_lines((*saved.problems, *saved.unknown), saved.checkpoint.folder):
        console.data(*console.paragraph(line, "    "))
