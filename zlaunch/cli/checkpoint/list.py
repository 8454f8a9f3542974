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


def list_checkpoints(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to look.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """List the checkpoints in a directory, and whether they are complete.

    Directories below it are searched, too: `outputs` finds `outputs/run-3/checkpoint-500`.
    """
    if not folder.is_dir():
        raise InputMissing(f"there is no directory `{folder}`")
    found = [summarize(one) for one in find(folder)]
    if as_json:
        console.data(to_json([members(one) for one in found]))
        return
    if not found:
        console.say(f"no checkpoints in `{folder}`")
        return
    header, *rows = console.table(list(table(found)), indent="")
    console.data(header)
    for row, one in zip(rows, found, strict=True):
        console.data(row)
        for line in problem_lines((*one.problems, *one.unknown)[:1], one.checkpoint.folder):
            console.data(*console.paragraph(line, "    "))
    if any(one.problems for one in found):
        broken = next(one for one in found if one.problems)
        console.say(f"`zlaunch checkpoint verify {typed(broken.checkpoint.folder)}` lists all problems")
