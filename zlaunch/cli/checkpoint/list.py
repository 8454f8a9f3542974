"""`zlaunch checkpoint list`: the checkpoints in a directory."""

from pathlib import Path
from typing import Annotated

import typer

from zlaunch import console
from zlaunch.checkpoint.find import find
from zlaunch.checkpoint.summary import summarize
from zlaunch.cli.options import AsJson
from zlaunch.cli.views.checkpoint import members, problem_lines, table, typed
from zlaunch.cli.views.dump import to_json
from zlaunch.errors import InputMissing
from zlaunch.files import why_not_directory


def list_checkpoints(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to look.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """List the checkpoints in a directory, and whether they are complete.

    Directories below it are searched, too: `outputs` finds `outputs/run-3/checkpoint-500`.
    """
    if (why := why_not_directory(folder)) is not None:
        raise InputMissing(why)
    checkpoints = list(map(summarize, find(folder)))
    if as_json:
        console.data(to_json(list(map(members, checkpoints))))
        return
    if not checkpoints:
        console.say(f"no checkpoints in `{folder}`")
        return
    header, *rows = console.table(list(table(checkpoints)), indent="")
    console.data(header)
    for row, saved in zip(rows, checkpoints, strict=True):
        console.data(row)
        for line in problem_lines((*saved.problems, *saved.unknown)[:1], saved.checkpoint.folder):
            console.data(*console.paragraph(line, "    "))
    if any(saved.problems for saved in checkpoints):
        broken = next(saved for saved in checkpoints if saved.problems)
        console.say(f"`zlaunch checkpoint verify {typed(broken.checkpoint.folder)}` lists all problems")
